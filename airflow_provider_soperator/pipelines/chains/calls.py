"""A call of sbatch in a shell script, as a stage of the script's pipeline."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from airflow_provider_soperator.pipelines.chains import standins
from airflow_provider_soperator.pipelines.chains.standins import ShellChainError
from airflow_provider_soperator.slurm import dependencies, directives, job_description, option_values
from airflow_provider_soperator.slurm.job import BatchJob


class ScriptWanted(Exception):
    """sbatch would read the job's script from its standard input."""


@dataclass
class Call:
    """A call of sbatch as the script makes it, with all variables replaced.

    It has one of `script` (a path, relative to the shell script's working directory), `stdin_script` and `command`.
    `fields` are those of a BatchJob, without body and arguments.
    """

    line: int
    words: Sequence[str]
    environment: Mapping[str, str]
    #: The folder that the script has changed to; "" for the first.
    folder: str
    stdin: str | None
    stdin_path: str | None
    #: Variables that the id is put into.
    variables: list[str] = field(default_factory=list, compare=False)
    #: Its name as a stage, once all calls are known.
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        (self.said, *het), rest = self._components()
        self.fields: dict[str, Any] = dict(self.said.fields)
        self.extra_args = list(self.said.extra_args)
        if het:
            self.fields["het"] = tuple(BatchJob(**part.fields, extra_args=tuple(part.extra_args)) for part in het)
        self.parsable = self._taken("parsable") is not None
        command = self._taken("wrap")
        self.command = None if command is None else command.removeprefix("--wrap=")
        self._taken("quiet")
        for name, reason in job_description.REFUSED.items():
            if name in self.said.lines and name not in ("parsable", "wrap", "quiet"):
                order = ", and let the calls after it wait by --dependency" if name == "wait" else ""
                raise self._error(f"--{name} cannot be used: {reason}", f"take it away{order}")
        self._body(rest)
        self._environment()
        self._place()
        # Slurm takes these for none.
        self.dependency = None if (said := self.fields.pop("dependency", None)) in ("", "0") else said
        self._refuse_ids()

    def printed(self, job: str) -> str:
        """The output of the call for a job's id."""
        if self.parsable:
            return f"{job};{self.fields['clusters']}\n" if "clusters" in self.fields else f"{job}\n"
        return f"Submitted batch job {job}\n"

    def _error(self, problem: str, remedy: str) -> ShellChainError:
        return ShellChainError(self.line, f"{problem}: {remedy}")

    def _components(self) -> tuple[list[directives.Component], list[str]]:
        """The options of each component of the job, and the words after them."""
        found: list[directives.Component] = []
        rest = [":", *self.words]
        while rest[:1] == [":"]:
            words = rest[1:]
            try:
                component, rest = directives.read_command(words)
            except directives.DirectiveError as wrong:
                raise self._error(f"sbatch would refuse this: {wrong.problem}", "mend it") from None
            last = words[len(words) - len(rest) - 1] if len(words) > len(rest) else ""
            if rest and last in component.extra_args and "=" not in last and not directives.resolve_long(last[2:]):
                raise self._error(
                    f"{last} is not a known option, and {rest[0]!r} may be its value or the script",
                    f"write {last}=VALUE, or other options after it",
                )
            found.append(component)
        return found, rest

    def _taken(self, name: str) -> str | None:
        found = [word for word in self.extra_args if word == f"--{name}" or word.startswith(f"--{name}=")]
        self.extra_args = [word for word in self.extra_args if word not in found]
        return found[-1] if found else None

    # Body, environment and folder

    def _body(self, rest: Sequence[str]) -> None:
        if self.command is not None and rest:
            raise self._error("--wrap and a script are given", "sbatch takes one of them")
        reads = self.command is None and (not rest or rest[0] == "/dev/stdin")
        self.script, self.args = (self.stdin_path if reads else rest[0] if rest else None), tuple(rest[1:])
        self.stdin_script = self.stdin if reads and self.script is None else None
        if reads and self.stdin is None and self.stdin_path is None:
            raise ScriptWanted
        if self.stdin_script == "":
            raise self._error("sbatch is given no script", "name it, or give it as sbatch <<'EOF'")

    def _environment(self) -> None:
        """The variables that the job gets from the script, by --export."""
        said = self.fields.get("export")
        names = None if said is None else option_values.as_words(said)
        if env := self.inherited(said) | self.fields.get("env", {}):
            self.fields["env"] = env
        if names is not None and (others := [name for name in names if name not in self.environment]) != names:
            # NONE with variables is a job's way to get these variables only.
            self.fields["export"] = ",".join(others) or "NONE"

    def inherited(self, export: Any) -> dict[str, str]:
        """The variables of the script that a job with this --export gets."""
        names = ["ALL"] if export is None else option_values.as_words(export)
        is_all = "ALL" in map(str.upper, names)
        return {name: value for name, value in self.environment.items() if is_all or name in names}

    def _place(self) -> None:
        folder = posixpath.normpath(self.folder)
        if folder == ".":
            return
        self.fields["chdir"] = posixpath.normpath(posixpath.join(folder, self.fields.get("chdir", "")))
        if self.script is not None:
            self.script = posixpath.normpath(posixpath.join(folder, self.script))

    def _refuse_ids(self) -> None:
        if "Submitted" in (self.dependency or ""):
            raise self._error("the dependency has sbatch's whole message in place of an id", "use sbatch --parsable")
        for arg in self.args:
            if standins.jobs_in(arg) and arg.startswith("-") and any(directives.options_in(arg)):
                raise self._error("an option stands after the script, where sbatch takes it for an argument", "move it")
        if any(-1 in standins.jobs_in(word) for word in self.words):
            raise self._error("a number is reckoned from the id of a job", "use the id as it is")
        lines = [line for line in directives.head(self.stdin_script or "") if line.startswith("#SBATCH")]
        if any(map(standins.jobs_in, lines)):
            raise self._error("the id of a job is in a #SBATCH line", "give sbatch itself --dependency")
        values = [*self.fields.values(), *self.extra_args, *self.args, self.command, self.script, self.stdin_script]
        values += self.fields.get("env", {}).values()
        if any(standins.jobs_in(str(value)) for value in values if not isinstance(value, Mapping)):
            raise self._error(
                "the id of a job is used for something else than --dependency, and Airflow has no id yet",
                "let the job find the other one by a file or a name",
            )

    # Dependencies

    def named_dependency(self, names: Sequence[str]) -> str | None:
        """The dependency with names of stages in place of their ids."""
        text = self.dependency
        if text is None or ("?" in text and not standins.jobs_in(text)):
            return text
        if "?" in text:
            raise self._error("'?' in a dependency is not understood", "say what all must come before, with ','")
        # Ids alone are an older form.
        older = re.sub(r"(?<![^,])(?=\d)", "afterany:", text)
        if ":" in text and older != text:
            raise self._error(
                "--dependency has an id without a type beside others, which for Slurm is afterany or a mistake",
                "join the ids of one type with ':', as in afterok:$A:$B, or write the type before each",
            )
        try:
            said = dependencies.dependency_terms(older)
        except ValueError as wrong:
            raise self._error(f"--dependency: {wrong}", "mend it") from None
        return ",".join(str(self._named(term, names)) for term in said)

    def _named(self, term: dependencies.Dependency, names: Sequence[str]) -> dependencies.Dependency:
        for job in term.jobs:
            if standins.jobs_in(job) and not standins.is_stand_in(job):
                raise self._error("--dependency has something behind the id of a job", "wait for all of the array")
        if problems := term.problems():
            raise self._error(f"--dependency: {'; '.join(problems)}", "mend it")
        jobs = [names[standins.jobs_in(job)[0]] if standins.is_stand_in(job) else job for job in term.jobs]
        return dependencies.Dependency(term.kind, *dict.fromkeys(jobs), minutes=term.minutes)


# Names

#: Variables with names that do not describe the job, such as JOB1 or jid.
_NO_NAME = re.compile(r"(?:(?:slurm|job|j|id|out|output|result|res|info)_?)+\d*")
#: Those of the tasks that a pipeline adds.
_TAKEN = ("submit", "submitted", "cancel_rest")


def staged(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The calls of a script as stages: with names, which dependencies have in place of ids."""
    names = _names(calls)
    for call, name in zip(calls, names, strict=True):
        call.name = name
        if (dependency := call.named_dependency(names)) is not None:
            call.fields["dependency"] = dependency
        if call.extra_args:
            call.fields["extra_args"] = tuple(call.extra_args)
    return tuple(calls)


def _names(calls: Sequence[Call]) -> list[str]:
    uses = Counter(variable for call in calls for variable in call.variables)
    found: list[str] = []
    for call in calls:
        said = [
            name
            for variable in call.variables
            if uses[variable] == 1 and not _NO_NAME.fullmatch(name := variable.lower())
        ]
        names = [*said, call.fields.get("name"), _name_in(call)]
        stem, _ = posixpath.splitext(posixpath.basename(call.script or ""))
        names += [stem, *map(str.lower, call.variables), "job"]
        name = next(clean for name in names if name and (clean := re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_")))
        found.append(distinct(f"{name}_job" if name in _TAKEN else name, found))
    return found


def distinct(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken.

    >>> distinct("train", ["train", "train_2"])
    'train_3'
    """
    numbered = (f"{name}_{number}" for number in count(2))
    return next(one for one in chain([name], numbered) if one not in taken)


def _name_in(call: Call) -> str | None:
    """The name that a script on sbatch's stdin gives itself."""
    if call.stdin_script is None:
        return None
    try:
        return directives.read(call.stdin_script)[0].fields.get("name")
    except directives.DirectiveError as wrong:
        raise ShellChainError(call.line, f"the script that is given to sbatch has a mistake in its {wrong}") from None
