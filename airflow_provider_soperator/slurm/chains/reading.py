"""Reads a shell script of chained sbatch calls as the stages of a pipeline. Nothing of it is run.

The script is followed as a shell would, on the assumption that every submission succeeds: variables have values, loops
and tests on known values go their ways, and ids of jobs are stood in for (see `texts`). What is not understood is
refused, unless it can do nothing to a job.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from airflow_provider_soperator.slurm.chains import texts
from airflow_provider_soperator.slurm.chains.conditions import holds
from airflow_provider_soperator.slurm.chains.expansion import Expander, Unknown
from airflow_provider_soperator.slurm.chains.parsing import parse
from airflow_provider_soperator.slurm.chains.stages import Call, Stage, staged
from airflow_provider_soperator.slurm.chains.syntax import (
    Assignment,
    Command,
    For,
    Group,
    If,
    Pipeline,
    Redirect,
    ShellChainError,
    Simple,
    Statement,
    Substitution,
    Word,
    as_assignment,
    literal,
    substitutions,
)

#: What does nothing to a job that is submitted after it.
_HARMLESS = frozenset({":", "date", "echo", "printf", "sacct", "set", "sinfo", "sleep", "squeue", "true", "wait"})
#: What a variable can be set to that is known to the cluster alone.
_ONLY_READ = frozenset(
    {"basename", "cat", "cd", "dirname", "hostname", "id", "ls", "nproc", "pwd", "readlink", "realpath", "wc", "whoami"}
)
_ENDS = frozenset({"exit", "return"})
_DECLARE = frozenset({"export", "readonly", "local", "declare", "typeset"})
_TESTS = frozenset({"[", "[[", "test"})
#: To ignore these means to ignore the files that they are told to write.
_WITHOUT_EFFECT = (_HARMLESS | _ONLY_READ | texts.FILTERS) - {"cd", "sed", "tee"}
_NOWHERE = frozenset({"/dev/null", "/dev/stderr", "/dev/stdout", "/dev/tty"})

#: How a command ends: as is known, as is assumed, or not to be told.
TRUE, FALSE, ASSUMED, UNTOLD = "true", "false", "assumed", "untold"

#: What a command prints; what cannot be told may have a cause.
Output = str | Unknown | None


def read(text: str, *, variables: Mapping[str, str] | None = None, ignored: Collection[str] = ()) -> tuple[Stage, ...]:
    """The jobs that a script would submit, in its order; ShellChainError on what is not understood.

    `variables` are those that the script takes from its surroundings, "1" being its first argument. Commands in
    `ignored` are passed over, as what they do is done otherwise or does not matter.

    >>> first, second = read("J=$(sbatch --parsable prepare.sh)\\nsbatch -N2 --dependency=afterok:$J train.sh")
    >>> second.name, second.fields, second.after[0].stages
    ('train', {'nodes': 2}, ('prepare',))
    """
    if texts.jobs_in(text) or "\r" in text:
        raise ShellChainError(1, "it has letters that no shell script has: check its encoding and its line ends")
    script = _Script(variables or {}, frozenset(ignored))
    with suppress(_EndOfScript):
        script.statements(parse(text))
    return staged(script.calls)


class _EndOfScript(Exception):
    """`exit`."""


class _Script:
    def __init__(self, given: Mapping[str, str], ignored: frozenset[str]) -> None:
        self.calls: list[Call] = []
        self._given = given
        self._ignored = ignored
        self._variables: dict[str, str | Unknown] = {**given, "?": "0"}
        self._arrays: dict[str, Sequence[str] | Unknown] = {}
        self._exported: set[str] = set()
        self._folder = ""
        #: What has been printed, by the script and by each $(...) that is open.
        self._printed: list[list[Output]] = [[]]
        self._expander = Expander(self._variables, self._arrays, self._substitute)

    # Control

    def statements(self, body: Sequence[Statement]) -> str:
        outcome = TRUE
        for statement in body:
            outcome = self._pipeline(statement.first)
            for operator, pipeline in statement.rest:
                wanted = (TRUE, ASSUMED) if operator == "&&" else (FALSE,)
                if outcome in wanted:
                    outcome = self._pipeline(pipeline)
                elif outcome == ASSUMED:
                    self._refuse_unless_harmless(pipeline.commands)
                elif outcome == UNTOLD:
                    self._refuse_unless_harmless(pipeline.commands)
                    self._printed[-1].append(None)
        return outcome

    def _pipeline(self, pipeline: Pipeline) -> str:
        outcome = TRUE
        output: Output = None
        for command in pipeline.commands:
            if isinstance(command, Simple):
                outcome, output = self._simple(command, output)
            elif len(pipeline.commands) > 1:
                raise ShellChainError(command.line, "this is not understood in a pipe: write a command for each job")
            else:
                outcome, output = self._compound(command), ""
        self._printed[-1].append(output)
        if pipeline.negated:
            outcome = {TRUE: FALSE, ASSUMED: FALSE, FALSE: TRUE}.get(outcome, outcome)
        untold = Unknown(pipeline.line, "how this ends is known only on the cluster")
        self._variables["?"] = untold if outcome == UNTOLD else "1" if outcome == FALSE else "0"
        return outcome

    def _compound(self, command: For | If | Group) -> str:
        if isinstance(command, Group):
            return self.statements(command.body)
        if isinstance(command, If):
            return self._if(command)
        for item in [item for word in command.items for item in self._fields(word, command.line)]:
            self._variables[command.name] = item
            self.statements(command.body)
        return TRUE

    def _if(self, command: If) -> str:
        branches = list(command.branches)
        while branches:
            condition, body = branches.pop(0)
            outcome = self.statements(condition)
            if outcome == UNTOLD:
                self._refuse_unless_harmless([Group(command.line, body)])
                self._printed[-1].append(None)
                if body and _ends(body[-1]):
                    continue  # a check, which is assumed to pass
            elif outcome == FALSE:
                continue
            else:
                self.statements(body)
            if outcome != TRUE:
                others = [*(body for _, body in branches), command.otherwise]
                self._refuse_unless_harmless([Group(command.line, other) for other in others])
            return TRUE
        return self.statements(command.otherwise)

    def _refuse_unless_harmless(self, commands: Sequence[Command]) -> None:
        for command in commands:
            if not self._harmless(command, _HARMLESS | _ENDS | _ONLY_READ - {"cd"} | self._ignored):
                raise ShellChainError(
                    command.line,
                    "whether this runs is known only on the cluster: take the condition out, or write down its outcome",
                )

    def _harmless(self, command: Command, names: frozenset[str]) -> bool:
        """Is this a command of these names, and nothing else in it?"""
        if isinstance(command, Simple):
            if command.assignments or not command.words or literal(command.words[0]) not in names:
                return False
            words = [*command.words, *(redirect.target for redirect in command.redirects)]
            return not any(map(_writes, command.redirects)) and not any(map(self._may_submit, words))
        if isinstance(command, Group):
            pipelines = [one for said in command.body for one in (said.first, *(pipeline for _, pipeline in said.rest))]
            return all(self._harmless(each, names) for pipeline in pipelines for each in pipeline.commands)
        return False

    def _may_submit(self, word: Word) -> bool:
        """Can expanding this word submit a job? So a value that is not known can be let pass, and a job cannot."""
        names = _HARMLESS | _ONLY_READ | _TESTS | texts.FILTERS | self._ignored
        return any(not self._harmless(Group(inner.line, inner.body), names) for inner in substitutions(word))

    # Words

    def _fields(self, word: Word, line: int) -> list[str]:
        return self._expander.fields(word, line)

    def _substitute(self, substitution: Substitution) -> str:
        """The output of `$(...)`, which is a shell of its own: where it goes and what it sets is lost with it."""
        folder, variables = self._folder, dict(self._variables)
        self._printed.append([])
        try:
            self.statements(substitution.body)
        finally:
            self._folder = folder
            self._variables.clear()
            self._variables.update(variables)
            outputs = self._printed.pop()
        for output in outputs:
            if not isinstance(output, str):
                problem = (
                    output.problem if output else "what this prints is known only on the cluster: write it instead"
                )
                raise Unknown(substitution.line, problem)
        return "".join(map(str, outputs))

    # Commands

    def _simple(self, command: Simple, piped: Output) -> tuple[str, Output]:
        if command.words and literal(command.words[0]) in _DECLARE:
            self._declare(command, literal(command.words[0]) or "")
            return ASSUMED, ""
        try:
            words = self._words(command)
        except Unknown as unknown:
            name = literal(command.words[0]) or ""
            may_submit = any(self._may_submit(word) for word in command.words)
            lasting = name == "cd" and len(self._printed) == 1 and name not in self._ignored
            if may_submit or lasting or name not in _HARMLESS | _ENDS | _ONLY_READ | _TESTS | self._ignored:
                remedy = "; ignored=['cd'] passes over it, paths being relative to there" if lasting else ""
                raise ShellChainError(unknown.line, unknown.problem + remedy) from None
            if name in _ENDS:
                raise _EndOfScript from None
            return self._outcome(name, unknown), self._redirected(command, name, unknown)
        if not words:
            known = [self._assign(assignment, command.line) for assignment in command.assignments]
            return (ASSUMED if all(known) else UNTOLD), ""
        name, *args = words
        if name in self._ignored - _WITHOUT_EFFECT:
            return ASSUMED, None
        if name in _TESTS:
            return self._test(args), ""
        if name in _ENDS:
            raise _EndOfScript
        output = self._called(command, name, args, piped)
        return self._outcome(name, output), self._redirected(command, name, output)

    def _outcome(self, name: str, output: Output) -> str:
        """That what reads finds something, as tests and `grep -q` do, cannot be told."""
        reads = name in _TESTS or (name in _ONLY_READ - {"cd"} | texts.FILTERS and not isinstance(output, str))
        return UNTOLD if reads else ASSUMED

    def _words(self, command: Simple) -> list[str]:
        if command.words and literal(command.words[0]) == "[[":
            return [self._expander.text(word) for word in command.words]
        return [field for word in command.words for field in self._fields(word, command.line)]

    def _called(self, command: Simple, name: str, args: list[str], piped: Output) -> Output:
        environment = {each.name: self._expander.text(each.value) for each in command.assignments}
        if name == "env":
            while args and (said := re.fullmatch(r"(?s)([A-Za-z_]\w*)=(.*)", args[0])):
                environment[said[1]] = said[2]
                del args[0]
            name, *args = args or ["env"]
        if posixpath.basename(name) == "sbatch":
            return self._sbatch(command, args, environment, piped)
        match name, args:
            case ("command", ["-v", found]) | ("type", ["-P", found]) | ("which", [found]):
                return found
            case "echo", _:
                if args[:1] in (["-e"], ["-ne"], ["-en"]):
                    return None
                return " ".join(args[1:]) if args[:1] == ["-n"] else " ".join(args) + "\n"
            case "unset", _:
                for variable in args:
                    self._variables.pop(variable, None)
                    self._arrays.pop(variable, None)
                return ""
            case "cd", [folder] if folder not in ("", "-"):
                gone = posixpath.normpath(posixpath.join(self._folder, folder))
                self._folder = "" if gone == "." else gone
                return ""
            case "seq", _ if 0 < len(args) < 4 and all(re.fullmatch(r"-?[1-9]\d*|0", arg) for arg in args):
                return texts.sequence(*map(int, args))
        text = self._input(command, piped)
        if name == "cat" and not args and text is not None:
            return text
        if name in texts.FILTERS and text is None and name not in ("sed", "tee"):  # which can write files
            return piped
        if name in texts.FILTERS and text is not None:
            filtered = texts.filtered(name, args, text)
            if filtered is None:
                raise ShellChainError(command.line, f"this use of {name} is not understood: use sbatch --parsable")
            return filtered
        if name == "set" and ("-a" in args or "allexport" in args):
            raise ShellChainError(command.line, "set -a is not understood: export each variable of the jobs")
        if name in _HARMLESS | _ONLY_READ and name != "cd":
            return None
        raise ShellChainError(
            command.line,
            f"{name!r} is not understood, and what it does would be lost: take it into a job or a task of its own; "
            f"if it does not matter here, ignored=[{name!r}] passes over it",
        )

    def _sbatch(self, command: Simple, args: list[str], own: Mapping[str, str], piped: Output) -> str:
        exported = {name: self._variables[name] for name in sorted(self._exported) if name in self._variables}
        # That ids are exported is a habit: of what the script sets for all jobs they are left out.
        environment = {name: value for name, value in exported.items() if not texts.jobs_in(str(value))} | dict(own)
        for name, value in environment.items():
            if name.startswith("SBATCH_") or name in ("SLURM_CONF", "SLURM_CLUSTERS"):
                raise ShellChainError(command.line, f"{name} changes what sbatch does: write it as an option of sbatch")
            if isinstance(value, Unknown):
                raise ShellChainError(command.line, f"the job would get {name} of line {value.line}: {value.problem}")
        source = next((each.target for each in command.redirects if each.operator in ("<", "0<")), None)
        call = Call(
            line=command.line,
            words=args,
            environment={name: str(value) for name, value in environment.items()},
            folder=self._folder,
            stdin=None if source is not None else self._input(command, piped),
            stdin_path=None if source is None else self._expander.text(source),
        )
        self.calls.append(call)
        return call.printed(texts.stand_in(len(self.calls) - 1))

    def _input(self, command: Simple, piped: Output) -> str | None:
        text = piped if isinstance(piped, str) else None
        for redirect in command.redirects:
            if redirect.operator == "<<":
                text = self._expander.text(redirect.target)
            elif redirect.operator == "<<<":
                text = self._expander.text(redirect.target) + "\n"
        return text

    def _redirected(self, command: Simple, name: str, output: Output) -> Output:
        if not any(map(_writes, command.redirects)):
            return output
        if posixpath.basename(name) != "sbatch" and name not in self._ignored:
            raise ShellChainError(
                command.line,
                f"the file that {name} writes would be missing: write it beforehand, or give a script to sbatch "
                f"itself (sbatch <<'EOF'); if it does not matter here, ignored=[{name!r}] passes over it",
            )
        return ""

    # Variables

    def _assign(self, assignment: Assignment, line: int) -> bool:
        """Set a variable, and return whether its value is known."""
        known = len(self.calls)
        name = assignment.name
        value: str | Sequence[str] | Unknown
        try:
            value = self._assigned(assignment, line)
        except Unknown as unknown:
            if any(map(self._may_submit, [assignment.value, *(assignment.elements or ())])):
                raise ShellChainError(unknown.line, unknown.problem) from None
            value = self._given.get(name, unknown)
        self._arrays.pop(name, None)
        self._variables.pop(name, None)
        if isinstance(value, (str, Unknown)):
            self._variables[name] = value
        else:
            self._arrays[name] = value
        for call in self.calls[known:]:
            call.variable = name
        return not isinstance(value, Unknown)

    def _assigned(self, assignment: Assignment, line: int) -> str | list[str]:
        before = self._arrays.get(assignment.name, self._variables.get(assignment.name, ""))
        if isinstance(before, Unknown) and assignment.appends:
            raise before
        if assignment.elements is not None:
            elements = [field for word in assignment.elements for field in self._fields(word, line)]
            return [*before, *elements] if assignment.appends and not isinstance(before, (str, Unknown)) else elements
        text = self._expander.text(assignment.value)
        return before + text if assignment.appends and isinstance(before, str) else text

    def _declare(self, command: Simple, name: str) -> None:
        for word in command.words[1:]:
            said = literal(word) or ""
            if said.startswith("-"):
                if not set(said[1:]) <= set("grx"):
                    raise ShellChainError(command.line, f"{name} {said} is not understood: set a plain variable")
                name = "export" if "x" in said else name
                continue
            assignment = as_assignment(word)
            if assignment is not None:
                self._assign(assignment, command.line)
            variable = assignment.name if assignment else said
            if name == "export":
                self._exported.add(variable)

    def _test(self, args: list[str]) -> str:
        outcome = holds([arg for arg in args if arg not in ("]", "]]")])
        return UNTOLD if outcome is None else TRUE if outcome else FALSE


def _writes(redirect: Redirect) -> bool:
    """Does it make a file that somebody could miss?"""
    target = literal(redirect.target) or ""
    elsewhere = redirect.operator.startswith("2") or target.isdecimal() or target in _NOWHERE
    return ">" in redirect.operator and not elsewhere


def _ends(statement: Statement) -> bool:
    command = (statement.rest[-1][1] if statement.rest else statement.first).commands[-1]
    return isinstance(command, Simple) and bool(command.words) and literal(command.words[0]) in _ENDS
