"""What to run on the cluster to submit a job: a command and its standard input, and nothing else.

A job's environment cannot ride on sbatch's own options. `--export=NAME=value` reads quotes and commas in values as its
own, writes them into the job's SLURM_EXPORT_ENV (which every srun in it obeys) and into accounting. `--export-file`
wipes sbatch's environment, and with it what SPANK plugins such as pyxis have put there. Lines at the head of the script
work for shells only and change what the user wrote. So the values come ahead of the script on standard input, a small
shell program puts them into sbatch's environment, and `--export` names them: they are never part of a command line,
never seen by an evaluating shell, and a transport needs no way of its own to carry variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_soperator.slurm import directives, rendering
from airflow_provider_soperator.slurm.description import Job, JobDescription

#: Variables of the program below, which a job's own must not be.
RESERVED_PREFIX = "_soperator_"

# Reads records that end in NUL up to an empty one. bash reads a pipe byte by byte here, so that what follows is left
# to sbatch. What bash keeps for itself (UID, SHELLOPTS) or stumbles over (IFS) goes through env.
_READ_ENVIRONMENT = """\
_soperator_sbatch=$(type -P sbatch) || { echo "sbatch: command not found" >&2; exit 127; }
_soperator_kept=()
while IFS= read -r -d '' _soperator_pair && [ -n "$_soperator_pair" ]; do
  case $_soperator_pair in IFS=*) false ;; *) unset -v "${_soperator_pair%%=*}" && export "$_soperator_pair" ;; esac \
    2>/dev/null || _soperator_kept+=("$_soperator_pair")
done
_soperator_run=("$_soperator_sbatch" "$@")
[ ${#_soperator_kept[@]} -eq 0 ] || _soperator_run=(/usr/bin/env "${_soperator_kept[@]}" "${_soperator_run[@]}")
"""
_FROM_STDIN = 'exec "${_soperator_run[@]}"\n'
# sbatch takes arguments only for a script with a name, and opens it: that works for a pipe, and not for a socket, which
# is what an SSH server's stdin can be.
_FROM_NAMED_PIPE = 'exec "${_soperator_run[@]}" < <(exec /bin/cat)\n'


@dataclass(frozen=True)
class Submission:
    """A command to run on the cluster, as words, and its standard input. It prints the job's id (and ";cluster").

    >>> from airflow_provider_soperator.slurm.job import BatchJob
    >>> BatchJob(command="hostname", name="a", nodes=2).submission().argv
    ('sbatch', '--parsable', '--job-name=a', '--nodes=2')
    """

    argv: tuple[str, ...]
    stdin: bytes


def with_script_environment(job: Job) -> Job:
    """The job with the variables and the `--export` of its script, which its own `--export` would displace."""
    text = rendering.body(job)
    if not job.env or job.export is not None or text is None:
        return job
    said = directives.read(text)[0].fields
    if "export" not in said:
        return job
    env: Mapping[str, str] = {**said.get("env", {}), **job.env}
    return job.replace(export=said["export"], env=env)


def build(job: JobDescription) -> Submission:
    job = with_script_environment(job)
    text = rendering.body(job)
    words = ["--parsable", *rendering.argv(job)]
    if job.remote_script is not None:
        words += [job.remote_script, *job.args]
    elif job.args:
        words += ["/dev/stdin", *job.args]
    stdin = (text or "").encode()
    if not job.env and (text is None or not job.args):
        return Submission(("sbatch", *words), stdin)
    records = [*(f"{name}={value}".encode() for name, value in job.env.items()), b""]
    finish = _FROM_NAMED_PIPE if text is not None and job.args else _FROM_STDIN
    program = _READ_ENVIRONMENT + finish
    return Submission(("bash", "-c", program, "sbatch", *words), b"\0".join(records) + b"\0" + stdin)
