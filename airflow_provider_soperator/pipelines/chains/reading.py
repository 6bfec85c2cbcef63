"""Reads a shell script of chained sbatch calls as the stages of a pipeline.

bash follows the script (see `recording`), on the assumption that every submission succeeds. Anything else is refused,
unless it cannot affect a job.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from os.path import exists
from pathlib import Path
from typing import Any

from airflow_provider_soperator.pipelines.chains import filters, standins
from airflow_provider_soperator.pipelines.chains.calls import Call, ScriptWanted, staged
from airflow_provider_soperator.pipelines.chains.recording import (
    ENDLESS,
    OF_A_JOB,
    TYPED,
    FileWanted,
    Script,
    missing,
    not_readable,
    not_understood,
)
from airflow_provider_soperator.pipelines.chains.standins import Marks, ShellChainError
from airflow_provider_soperator.pipelines.graph import PipelineError
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.sbatch_arguments import (
    RESERVED_PREFIX,
    asked_for,
    changes_submission,
    is_singleton,
)
from airflow_provider_soperator.values import SCRIPTS, has_template

MOST_CALLS, _MOST_DECISIONS, _MOST_FILES = 1000, 50, 20

_OTHER_SHELL = re.compile(r"#!(?!.*\b(?:ba|da|k)?sh\b).*")
_OWN = re.compile(r"(?:^|\s)([A-Za-z_][A-Za-z0-9_]*)=")
_SUBMITS = re.compile(r"(?:^|[;&|(]\s*)(?:\S*/)?sbatch(?:\s|$)")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", re.DOTALL)
_EXPANSION = re.compile(r"\$\(\(.*?\)\)|\$\{[^{}]*\}|\$\([^()]*\)|`[^`]*`")
#: bash shows the ends of here-documents without expansion in quotes.
_LITERAL_DOCUMENT = re.compile(r"<<-?'([^'\n]*)'(.*?\n).*?^\1$", re.DOTALL | re.MULTILINE)
_DOCUMENT = re.compile(r"<<-?\w[^\n]*\n")
#: What is another here than where the script is run.
_OF_THE_SHELL = {
    "before": re.compile(r"\$\{?_(?!\w)"),
    "process": re.compile(r"\$(?:\$|\{?(?:UID|EUID|PPID|BASHPID)\b)"),
}
_PATTERN = re.compile(r"[*?]|\[.+\]")
_UNDECIDED = "whether this runs is known only on the cluster: take the condition out, or write down its outcome"
#: What is refused wherever it stands, and the remedy.
_REFUSED = {
    "before": ("$_, the last word of the command before, is not known here", "write the word itself"),
    "beside": (
        "`&` starts a command beside the script, and so does <(…)",
        "leave `&` out, as sbatch waits for no job, and write $(…), with <<< where it is read",
    ),
    "clock": ("the time is known only where it is run", "write it down"),
    "function": ("a function is exported, which jobs would not get", "write it into their scripts"),
    "process": ("numbers of processes and users are known only where it is run", "write one down"),
    "trap": ("a trap is set for each command", "leave it out"),
    "written": ("a command is passed over, and with it the job that it submits", "submit it before"),
}
_WHOLE_PATH = re.compile(r"(?<![\w.}\"])/[\w./-]*")


def read(text: str, *, variables: Mapping[str, str] | None = None, ignored: Collection[str] = ()) -> tuple[Call, ...]:
    """The jobs that a script would submit, in its order; ShellChainError for anything not understood.

    `variables` are those that the script takes from its environment, "1" being its first argument. Commands in
    `ignored` are skipped, as they are done otherwise or do not matter.

    >>> first, second = read("J=$(sbatch --parsable prepare.sh)\\nsbatch -N2 --dependency=afterok:$J train.sh")
    >>> second.name, second.fields
    ('train', {'nodes': 2, 'dependency': 'afterok:prepare'})
    """
    if re.search(r"[\x00\x02-\x05\r]", text):
        raise ShellChainError(1, "it has letters that no shell script has: check its encoding and its line ends")
    if shell := _OTHER_SHELL.match(text):
        raise ShellChainError(
            1, f"it is no script of bash ({shell[0]}), which would read it otherwise: write it for bash"
        )
    script = Script(text, variables or {}, list(dict.fromkeys(ignored)))
    run = _Run(script, [])
    while run.failed and run.decisions and run.outcomes[len(run.decisions) - 1]:
        # The last check was not passed, so it comes out otherwise where the script goes on.
        run = _Run(script, [*run.outcomes[: len(run.decisions) - 1], False])
    if run.failed:
        raise run.failed
    # The ways of the script if the cluster decides otherwise, which may lead to other decisions.
    ways, seen = [run], set[tuple[int, str, int]]()
    for way in ways:
        for at, decision in enumerate(way.decisions):
            if decision in seen:
                continue
            other = _Run(script, [*way.outcomes[:at], not way.outcomes[at]])
            if not other.failed and other.calls != run.calls:
                raise ShellChainError(decision[0], _UNDECIDED)
            ways.append(other)
        seen.update(way.decisions)
    return staged(run.calls)


def task_parameters(
    script: str,
    here: Path,
    variables: Mapping[str, str],
    ignored: Collection[str],
    *,
    by_name: bool = False,
    start: str = "",
) -> dict[str, dict[str, Any]]:
    """The parameters of a task for each stage, by name; a script of one line is a file below ``here``.

    ``by_name``: scripts that are there stay files beside the DAG, where a task can name them. ``start``: the folder on
    the cluster that tasks have by default, from which relative ones count.
    """
    variables = {str(name): str(value) for name, value in variables.items()}
    if template := next((name for name, value in variables.items() if has_template(value)), None):
        raise PipelineError(
            f"variables: {template} is a template, which has no value yet when the script is read: write the stages as "
            f"operators, or for SbatchPipeline.of, whose parameters may be templates"
        )
    if "\n" not in script:
        file = here / script
        if not file.is_file():
            raise PipelineError(
                f"there is no script {script} in the DAG's folder {here}: name a file, or give its text"
            )
        here, script = file.parent, _text_of(file)
    stages = read(script, variables=variables, ignored=ignored)
    found: dict[str, dict[str, Any]] = {}
    unnamed: dict[str, str] = {}
    awaited: set[str] = set()
    for stage in stages:
        file = here / (stage.script or "")
        # A whole path is one on the cluster, whatever is there on this machine.
        is_here = not posixpath.isabs(stage.script or "") and file.is_file()
        text = _text_of(file) if is_here else stage.stdin_script
        found[stage.name] = _options(stage, file, text, start, by_name=by_name)
        own = asked_for(BatchJob(script=text or None, name=stage.fields.get("name"), dependency=stage.dependency))
        if not own.name:
            reads = stage.stdin is not None or stage.stdin_path is not None
            unnamed[stage.name] = "wrap" if stage.command is not None else "sbatch" if reads else file.name
        if is_singleton(own):
            awaited.add(own.name or unnamed[stage.name])
    for stage in stages:
        if (by_default := unnamed.get(stage.name)) in awaited:
            if "remote_script" in found[stage.name]:
                why = "jobs wait for each other by their names (singleton), and its script on the cluster may have one"
                raise ShellChainError(stage.line, f"{why}: give sbatch --job-name")
            # sbatch's own: it waits for others of the name, or they for it.
            found[stage.name]["name"] = by_default
    return found


def _options(stage: Call, file: Path, text: str | None, start: str, *, by_name: bool) -> dict[str, Any]:
    fields = dict(stage.fields)
    if text and "export" not in stage.said.fields:
        fields["env"] = stage.inherited(asked_for(BatchJob(script=text)).export) or None
    options = {name: _raw(value) for name, value in fields.items() if value is not None}
    if others := options.pop("extra_args", None):
        options["sbatch_args"] = others
    if stage.args:
        options["args"] = _raw(list(stage.args))
    options |= _folder(stage, text, start)
    if stage.dependency and text and asked_for(BatchJob(script=text)).dependency:
        problem = "its script has a --dependency of its own, which sbatch ignores beside this: take it out there"
        raise ShellChainError(stage.line, problem)
    if stage.command is not None:
        return {**options, "command": _raw(stage.command)}
    if text is None:
        return {**options, "remote_script": posixpath.join(start if "chdir" in options else "", _raw(stage.script))}
    return {**options, "script": script_of(stage.script or "", text) if by_name and stage.script else _raw(text)}


def _folder(stage: Call, text: str | None, start: str) -> dict[str, Any]:
    """The folder of the job, unless tasks or its script have it anyway."""
    folder = stage.fields.get("chdir", "")
    # sbatch would count that of the script from where it is called, and not heed it beside this.
    if text and (folder or start) and "chdir" not in stage.said.fields:
        own = asked_for(BatchJob(script=text)).chdir
        folder = posixpath.join(folder, own) if own else folder
    return {"chdir": posixpath.join(start, _raw(folder))} if folder else {}


def script_of(name: str, text: str) -> str:
    """The script of a task: the name of its file, if Airflow reads such a file and as it stands, or else the text."""
    script: str = _raw(text)
    return name if name.endswith(SCRIPTS) and not has_template(script) else script


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except UnicodeDecodeError as error:
        raise PipelineError(f"{file} is no text in UTF-8 ({error}): save it as such") from None


def _raw(value: Any) -> Any:
    """Keep Jinja from reading a text as a template, such as ``${#files[@]}``."""
    if isinstance(value, str):
        return f"{{% raw %}}{value}{{% endraw %}}" if any(mark in value for mark in ("{{", "{%", "{#")) else value
    if isinstance(value, (list, tuple)):
        return [_raw(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _raw(one) for name, one in value.items()}
    return value


class _Run:
    """One way through a script: decisions of the cluster take the given outcomes, then success."""

    def __init__(self, script: Script, outcomes: Sequence[bool]) -> None:
        self.outcomes: list[bool] = []
        self.calls: list[Call] = []
        #: The cluster's decisions: their lines and commands, and how often they have come up before.
        self.decisions: list[tuple[int, str, int]] = []
        #: The reason if the script has given up.
        self.failed: ShellChainError | None = None
        self._variables, self._ignored = script.variables, script.ignored
        self._numbers = set(re.findall(r"\d+", " ".join((script.text, *script.variables.values()))))
        self._marks = Marks()
        self._files: dict[str, str] = {}
        self._line, self._is_over = 1, False
        #: Calls whose script is still to come, by the process that waits for them.
        self._waiting: dict[str, partial[str]] = {}
        self._follow(script, outcomes)

    def _follow(self, script: Script, outcomes: Sequence[bool]) -> None:
        while True:
            self.outcomes, self.calls, self.decisions, self._is_over = list(outcomes), [], [], False
            try:
                script.follow(self._answered, self._marks, self._files)
                break
            except FileWanted as wanted:
                file = str(wanted)
                if len(self._files) == _MOST_FILES or file.startswith("../") or standins.is_marked(file):
                    raise ShellChainError(self._line, not_readable(file)) from None
                self._files[file] = self._marks.of(f"what is in {file} is known only on the cluster: write it down")
        if not self._is_over and self.failed is None:
            self.failed = self._error("the script ends here, as a command has failed", "mend it")

    # Questions of bash: `recorder.bash` begins with a table of them

    def _answered(self, pid: str, line: int, command: str, what: str, args: Sequence[str]) -> tuple[int, str]:
        self._line = line
        match what, args:
            case "sbatch", [folder, count, *words]:
                exported, words = words[: int(count)], words[int(count) :]
                if unknown := next(filter(standins.is_marked, [folder, *words]), None):
                    raise ShellChainError(self._line, self._marks.cause(unknown))
                self._refuse_patterns(command)
                environment = self._environment(exported, command)
                submit = partial(self._submit, line, folder, words, environment)
                try:
                    return 0, submit()
                except ScriptWanted:
                    self._waiting[pid] = submit
                    return 0, "stdin"
            case "stdin", [text]:
                return 0, self._waiting.pop(pid)(text)
            case "told", args:
                return 0, self._told(args)
            case (("takes" | "filter"), [text, *args]):
                try:
                    return self._filtered(command, args, None if what == "takes" else text)
                except filters.MayActError:
                    return self._answered(pid, line, command, "unknown", args)
                except filters.EndlessError:
                    raise ShellChainError(line, ENDLESS) from None
            case "decide", args:
                return (0 if self._decide(command) else 1), self._told(args)
            case "unknown", args if any(map(_SUBMITS.search, args)):
                raise self._error(f"{args[0]!r} is not understood, and submits a job", "call sbatch itself")
            case "unknown", args if args[0] in self._ignored:
                return 0, self._told(args)
            case "unknown", [name, *_] if standins.is_marked(name):
                raise ShellChainError(self._line, self._marks.cause(name))
            case "unknown", args:
                raise ShellChainError(self._line, not_understood(args[0]))
            case "missing", [file] if "tee" not in self._ignored:
                raise ShellChainError(self._line, missing(file))
            case "given", [name]:
                return (0, self._variables[name]) if name in self._variables else (1, "")
            case "named", [name, value]:
                self._name(name, value)
            case "exit", [status] if status != "0":
                remedy = (
                    "if it lacks an argument or a variable, say what it is, variables={'1': ...} (--variable 1=...)"
                )
                self.failed = self._error(f"the script ends here with exit {status}", remedy)
            case "over", [place]:
                self._line = int(place)
            case (("exit" | "end"), _):
                self._is_over = True
            case "lost", [value, name] if re.search(rf"\$\{{?[#!]?{name}", _expanded(command)):
                raise ShellChainError(self._line, self._marks.cause(value))
            case "read", [value]:
                raise ShellChainError(self._line, self._marks.cause(value))
            case "typed", _:
                raise ShellChainError(self._line, TYPED)
            case "loop", _:
                self._refuse_patterns(command)
            case "pattern", [name, value]:
                self._refuse_patterns(command, rf"\$\{{?{name}\b", value)
            case "words", [value, head] if standins.is_mark(value) and _is_split(head):
                raise ShellChainError(self._line, self._marks.cause(value))
            case name, _ if name in _OF_THE_SHELL and not _OF_THE_SHELL[name].search(_expanded(command)):
                pass
            case name, _ if name in _REFUSED:
                raise self._error(*_REFUSED[name])
        return 0, ""

    def _filtered(self, command: str, args: Sequence[str], text: str | None) -> tuple[int, str]:
        """What a filter makes of a text, of an unknown one what is unknown for the same reason; or if it takes one."""
        # What is not known in a word may be any number.
        name, *words = map(standins.with_numbers, args)
        if text is None:
            return (0 if filters.takes_text(name, words) else 1), ""
        unknown = next(filter(standins.is_marked, [*args, text]), None)
        done = filters.filtered(name, words, "" if unknown else text)
        if unknown:
            return (1 if name.endswith("grep") and not self._decide(command) else 0), standins.marks_in(unknown) + "\n"
        if done is None:
            return (0 if self._decide(command) else 1), self._told(args)
        return done

    def _error(self, problem: str, remedy: str) -> ShellChainError:
        return ShellChainError(self._line, f"{problem}: {remedy}")

    def _told(self, command: Sequence[str]) -> str:
        """Output of a command that only the cluster can carry out."""
        cause = f"what {command[0]} says (line {self._line}) is known only on the cluster: write it down instead"
        return self._marks.of(cause) + "\n"

    def _decide(self, command: str) -> bool:
        # For a failing [[ ]] bash checks files itself, and must not find them on this machine, or be content that they
        # are not there.
        is_here = re.search(r"\s!\s", command) or any(map(exists, _WHOLE_PATH.findall(command)))
        if len(self.decisions) == _MOST_DECISIONS or (command.startswith("[[ ") and is_here):
            raise ShellChainError(self._line, _UNDECIDED)
        place = (self._line, command)
        self.decisions.append((*place, sum(one[:2] == place for one in self.decisions)))
        if len(self.decisions) > len(self.outcomes):
            self.outcomes.append(True)
        return self.outcomes[len(self.decisions) - 1]

    def _name(self, variable: str, value: str) -> None:
        """Record a variable that holds the id of one job, or all that sbatch has printed for it."""
        match standins.jobs_in(value):
            case [job] if job >= 0:
                call, id_ = self.calls[job], standins.stand_in(job)
                if value in (id_, call.printed(id_).rstrip()) and variable not in call.variables:
                    call.variables.append(variable)

    # Submissions

    def _submit(
        self, line: int, folder: str, words: list[str], environment: Mapping[str, str], stdin: str | None = None
    ) -> str:
        if len(self.calls) == MOST_CALLS:
            raise self._error(f"the script submits more than {MOST_CALLS} jobs", "use an array (--array)")
        if stdin and self._marks.cause(stdin) == TYPED:
            stdin = ""
        path = None if stdin is None else next((file for file, said in self._files.items() if said == stdin), None)
        if path is None and standins.is_marked(stdin or ""):
            raise ShellChainError(line, self._marks.cause(stdin or ""))
        call = Call(line, words, environment, folder, stdin=None if path else stdin, stdin_path=path)
        for job in set(re.findall(r"(?:^|[:,])(\d+)", call.dependency or "")) - self._numbers:
            if not standins.is_stand_in(job) and standins.is_within(job, len(self.calls)):
                raise self._error("an id is cut out by its width, and ids differ in width", "use sbatch --parsable")
        self.calls.append(call)
        return call.printed(standins.stand_in(len(self.calls) - 1))

    def _environment(self, exported: Sequence[str], command: str) -> dict[str, str]:
        """The variables that a job gets from the script."""
        own = set(_OWN.findall(command.partition("sbatch")[0]))
        found = {}
        for name, value in dict(pair.partition("=")[::2] for pair in exported).items():
            # After set -a the recorder's own are exported, too.
            is_recorders = name == "IFS" or name.startswith(RESERVED_PREFIX)
            is_the_jobs = name in OF_A_JOB and standins.is_marked(value)
            # Scripts export ids out of habit: they are left out of the environment of jobs.
            if is_recorders or (name not in own and (is_the_jobs or standins.jobs_in(value))):
                continue
            if changes_submission(name):
                raise self._error(f"{name} changes what sbatch does", "write it as an option of sbatch")
            if standins.is_marked(value):
                raise ShellChainError(self._line, f"the job would get {name}: {self._marks.cause(value)}")
            found[name] = value
        return found

    def _refuse_patterns(self, command: str, expansion: str | None = None, value: str = "") -> None:
        """Refuse a command with patterns for files, in its words or in the value of an expansion that stands in one."""
        words = _QUOTED.sub("", command.partition("<<")[0])
        if expansion is None:
            value = _EXPANSION.sub("", words)
        elif not any(re.search(expansion, word) and not word.startswith("-") for word in words.split()):
            return
        for word in value.split():
            # --nodelist=worker-[0-3] and afterok:1?afterok:2 are not file patterns.
            if _PATTERN.search(word) and not word.startswith(("-", "after")):
                raise self._error(f"{word!r} is a pattern for files on the cluster", "name them, or quote it")


def _is_split(head: str) -> bool:
    """True if an expansion in the head of a loop can make several words."""
    return bool(re.search("[$`@]", _QUOTED.sub(lambda found: "@" if "@" in found[0] else "", head)))


def _expanded(command: str) -> str:
    """Parts of a command in which bash expands variables."""
    command = _LITERAL_DOCUMENT.sub(r"\2", command)
    document = _DOCUMENT.search(command)
    head, body = (command[: document.end()], command[document.end() :]) if document else (command, "")
    kept = _QUOTED.sub(lambda found: re.sub(r"\\.", "", found[0]) if found[0].startswith('"') else "", head)
    return kept + re.sub(r"\\.", "", body)
