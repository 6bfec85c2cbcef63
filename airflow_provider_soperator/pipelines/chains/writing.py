"""Writes jobs that depend on each other as the shell script that would submit them by hand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from airflow_provider_soperator.pipelines.chains.calls import distinct
from airflow_provider_soperator.slurm import sbatch_arguments
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.submission_keys import key_of, strip_key

_HEAD = "#!/bin/bash\nset -euo pipefail\n"
_KEY = re.compile(r"(?<=:)[a-z2-7]{12}(?=(_?))(?![a-z0-9])")
_WIDTH = 100
#: Variables of bash's own that it does not let be set, and one of restricted bash: `env` can set them.
_SET_BY_ENV = frozenset({"BASHOPTS", "BASH_VERSINFO", "EUID", "FUNCNAME", "GROUPS", "PATH", "PPID", "SHELLOPTS", "UID"})


def as_shell(jobs: Mapping[str, BatchJob]) -> str:
    """The script that submits these jobs in their order, with job ids in place of the keys that they wait for.

    >>> print(as_shell({"prepare": BatchJob(command="hostname", nodes=2)}), end="")
    #!/bin/bash
    set -euo pipefail
    <BLANKLINE>
    prepare=$(sbatch --parsable --nodes=2 --wrap=hostname)
    echo "prepare: $prepare"
    """
    variables: dict[str, str] = {}  # by key
    taken: set[str] = set()
    written = [_HEAD]
    for name, job in jobs.items():
        job.check()
        variable = _variable(name, taken)
        taken.add(variable)
        written += ["\n", f"{variable}=$(", *_call(name, job, variables), ")\n"]
        if job.clusters is not None:
            written.append(f"{variable}=${{{variable}%%;*}}\n")
        written.append(f'echo "{variable}: ${variable}"\n')
        if job.name is not None and (key := key_of(job.name)):
            variables[key.text] = variable
    return "".join(written)


def _call(name: str, job: BatchJob, variables: Mapping[str, str]) -> Iterator[str]:
    job = sbatch_arguments.with_script_environment(job)
    if job.name is not None:
        job = job.replace(name=strip_key(job.name) or None)
    words = [_option(name, word, variables) for word in sbatch_arguments.argv(job)]
    script = sbatch_arguments.body(job)
    if job.command is not None:
        command = job.command if isinstance(job.command, str) else shlex.join(job.command)
        # Options of the first component come before the others.
        words.insert(words.index(":") if job.het else len(words), f"--wrap={shlex.quote(command)}")
        script = None
    elif job.remote_script is not None:
        words += map(shlex.quote, (job.remote_script, *job.args))
    elif job.args:
        # sbatch takes arguments only for a script with a name.
        words += map(shlex.quote, ("/dev/stdin", *job.args))
    yield _on_lines([*_environment(job.env), "--parsable", *words])
    if script is not None:
        delimiter = "EOF"
        while delimiter in script.split("\n"):
            delimiter += "_"
        end = "" if script.endswith("\n") else "\n"
        yield f" <<'{delimiter}'\n{script}{end}{delimiter}\n"


def _environment(env: Mapping[str, str]) -> list[str]:
    """Text before sbatch's options."""
    sbatch = "sbatch"
    if "PATH" in env:  # the shell would look for sbatch in this PATH
        sbatch = '"$(type -P sbatch)"'
    values = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    return [*(["env"] if _SET_BY_ENV & env.keys() else []), *values, sbatch]


def _option(name: str, word: str, variables: Mapping[str, str]) -> str:
    """An option as a word of the shell, with variables in place of the keys that a dependency names."""
    if not word.startswith("--dependency=") or not _KEY.search(word):
        return shlex.quote(word)

    def variable(found: re.Match[str]) -> str:
        if found[0] not in variables:
            raise ValueError(
                f"{name}: it waits for the job with the key {found[0]}, which is not among those before it"
            )
        # In front of an array's index the name needs an end.
        return f"${{{variables[found[0]]}}}" if found[1] else f"${variables[found[0]]}"

    replaced = _KEY.sub(variable, word)
    return f'"{replaced}"' if set("?*") & set(replaced) else replaced


def _on_lines(words: list[str]) -> str:
    """The words of a command, on as many lines as they need."""
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) > _WIDTH:
            lines.append("  ")
        lines[-1] += f"{word} "
    return "\\\n".join(lines).rstrip(" ")


def _variable(name: str, taken: set[str]) -> str:
    """A variable name made from this one, in lower case, unlike the shell's own variables."""
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
    return distinct(plain if plain[:1].isalpha() else f"job_{plain}", taken)
