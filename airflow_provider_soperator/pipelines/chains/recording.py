"""Lets bash follow a script of chained sbatch calls without running any of its commands but text filters.

`recorder.bash` is what bash reads first, and begins with a table of its questions and their answers.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow_provider_soperator.pipelines.chains import filters, standins
from airflow_provider_soperator.pipelines.chains.standins import Marks, ShellChainError

#: Seconds that bash may take for a script.
SECONDS = 20.0

#: Programs that print what only the cluster knows; those that look up may fail.
_TELL = ("date", "hostname", "id", "nproc", "pwd", "sacct", "sinfo", "sleep", "squeue", "uname", "whoami")
_LOOK_UP = ("file", "ls", "readlink", "realpath", "stat")
#: Builtins with side effects, some of which jobs inherit.
_BUILTINS = ("kill", "popd", "pushd", "ulimit", "umask")
#: To ignore these means to ignore the files that they write.
_WITHOUT_EFFECT = {*filters.NAMES, *_TELL, *_LOOK_UP, "echo", "printf", "set", "tee", "true", ":"}

#: Variables that depend on this machine.
_OF_THE_MACHINE = (
    *("EPOCHREALTIME", "EPOCHSECONDS", "HOME", "HOSTNAME", "HOSTTYPE", "MACHTYPE", "OLDPWD", "OSTYPE", "PWD", "RANDOM"),
    *("SECONDS", "SHELL", "SRANDOM", "TERM"),
)
#: Variables that a job has of its own, unless the script itself exports a value.
OF_A_JOB = {*_OF_THE_MACHINE, "LOGNAME", "PATH", "USER"}
#: Other variables of bash's own, whose values are right.
_OF_BASH = (
    *("BASH", "EUID", "FUNCNAME", "IFS", "LINENO", "OPTARG", "OPTIND", "PATH", "PIPESTATUS", "PPID", "REPLY", "UID"),
)

#: Why the input of the script is not known.
TYPED = "this asks the one who runs the script: set the variable instead"
ENDLESS = "the script does not come to an end: write one line for each job"

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_USED = re.compile(rf"\$\{{?[!#]?({_NAME})")
#: Arithmetic, and a variable in it with what sets it, if anything does.
_ARITHMETIC = re.compile(r"\(\((.*?)\)\)", re.DOTALL)
_TERM = re.compile(rf"(\+\+|--|(?<![\w$#{{]))({_NAME})\b(?:\s*(\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=)))?")
_WITH_DEFAULT = re.compile(rf"\$\{{({_NAME}):?[-=+?]")
#: What sets no variable of the script: comments, here-documents and quoted texts.
_TEXT = re.compile(
    r"(?<![^\s;&|(])#[^\n]*|(?<!<)<<-?\s*(['\"]?)(\w+)\1.*?\n\t*\2$|'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.",
    re.DOTALL | re.MULTILINE,
)
_SETS = re.compile(
    rf"(?:^|[\s;&|(`{{])({_NAME})(?:\[[^]]*\])?(?:\+?=|\+\+|--)|\bfor\s+({_NAME})"
    r"|\b(?:read|readarray|mapfile|getopts|local|declare|typeset|printf\s+-v)\b([^\n;|&<>]*)",
    re.MULTILINE,
)
#: Words that are variables, or begin with one that gets a value.
_WORD = re.compile(rf"(?<!\S){_NAME}(?=[=\s[]|$)")
#: A variable of jobs that is made of what it was before.
_EXTENDED = re.compile(rf"\bexport\s+({_NAME})=\S*\$\{{?\1\b")
_ARGUMENT = re.compile(rf"\$([0-9@*])|\$\{{([0-9]+|[@*])(?!:?[-=+?])|\bfor\s+{_NAME}\s*;?\s*(do)\b")
_SBATCH_BY_PATH = re.compile(r"(?<![\w./~-])[\w./~-]*/sbatch(?![\w./-])")
#: Redirections that are replaced by ones to file descriptors, from _FIRST_AWAY on.
_AWAY = re.compile(r"(?P<both>&)?(?P<from>\d*)>>?\|?[ \t]*/dev/(?P<to>null|stderr|tty)(?![\w./-])")
_FIRST_AWAY = 200
_WAS_AWAY = re.compile(r"\d*>&(2\d\d)(?: 2>&\1)?")
#: What bash is to say of a file is turned where it is asked, not in `[[ ]]`, whose outcome is decided without `!`.
_NOT_A_FILE = re.compile(r"\[\[ ! (?=-[bcdefghkLprsStuwxGNO] (?:\"[^\"\n]*\"|[^\s\"&|()<>]+) \]\])")
_FILE = "! [[ \t \t"
#: A file that bash would read by itself, without a command that asks before.
_READ = re.compile(r"(\$\(|(?<==)\"?`)(?=[ \t]*<[ \t]*(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'`()<>&;|])+[ \t]*[)`])")
_CAT = "_soperator_filter cat "
_UNENDED = re.compile(r"here-document at line (\d+) delimited by end-of-file \(wanted `(.*)'\)")
_COMPLAINT = re.compile(r": line (\d+): (.*)")


#: A status and a text, for what bash asks with these arguments at a point of the script: by the process that waits for
#: the answer, the line, and the command as the script has it.
Answer = Callable[[str, int, str, str, Sequence[str]], tuple[int, str]]


class FileWanted(Exception):
    """The script reads from a file, by its path."""


@dataclass(frozen=True)
class Script:
    """A script with its environment."""

    text: str
    variables: Mapping[str, str]
    ignored: Collection[str]

    def follow(self, answer: Answer, marks: Marks, files: Mapping[str, str]) -> None:
        """Let bash go through it, with questions to ``answer``; ``files`` are the existing ones, with their text.

        Raises ``ShellChainError`` for errors of bash, ``FileWanted`` for a missing file.
        """
        bash = shutil.which("bash")
        if bash is None:
            raise ShellChainError(1, "it is bash that reads scripts, and there is none here: install it")
        away: list[str] = []
        with TemporaryDirectory(prefix="soperator-chain-") as folder, ExitStack() as stack:
            here, prelude = Path(folder, "here"), Path(folder, "prelude")
            programs = Path(folder, marks.of(_unset("PATH")))
            programs.mkdir()
            for file, said in files.items():
                (here / file).parent.mkdir(parents=True, exist_ok=True)
                (here / file).write_text(said)
            here.mkdir(exist_ok=True)
            name = marks.of("where the script lies is known only on the cluster: write the path")
            (here / name).write_text(f"{_without_away(self.text, away)}\n_soperator_end\n")
            (asked, asks), (answered, answers), (turn, turns) = (_pipe(stack) for _ in range(3))
            turns.write(b".")
            theirs = tuple(end.fileno() for end in (asks, answered, turn, turns))
            opened = ["exec 198>&{} 199<&{} 197<&{} 196>&{} 195>/dev/null".format(*theirs)]
            for number, redirection in enumerate(away, start=_FIRST_AWAY):
                opened.append(f"exec {number}>{'/dev/null' if redirection.endswith('null') else '&2'}")
            prelude.write_text("\n".join([*opened, *self._prelude(marks)]) + "\n")
            errors, typed = Path(folder, "errors"), Path(folder, "typed")
            typed.write_text(marks.of(TYPED) + "\n")
            process = subprocess.Popen(
                [bash, "--restricted", name, *self._arguments(marks)],
                cwd=here,
                env={"PATH": str(programs), "BASH_ENV": str(prelude), "LC_ALL": "C.UTF-8"},
                pass_fds=theirs,
                stdin=stack.enter_context(typed.open("rb")),
                stdout=subprocess.DEVNULL,
                stderr=stack.enter_context(errors.open("wb")),
                start_new_session=True,
            )
            try:
                # So that reading ends with the last other writer.
                asks.close()
                line = 1
                for pid, said_line, command, what, *args in _requests(asked):
                    line = self._beginning(int(said_line))
                    self._heed(errors.read_text(errors="replace"), str(prelude), name, marks, line)
                    if foreign := _opened(pid, os.path.realpath(folder)):
                        raise ShellChainError(line, not_readable(foreign))
                    command, *args = (_as_written(word, away) for word in (command, *args))
                    status, said = answer(pid, line, command, what, args)
                    answers.write(f"{status}\0{said}\0".encode())
                self._heed(errors.read_text(errors="replace"), str(prelude), name, marks, line)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _prelude(self, marks: Marks) -> list[str]:
        calls = dict.fromkeys(filters.NAMES, "_soperator_filter") | dict.fromkeys(("[", "test"), "_soperator_test")
        calls |= dict.fromkeys(("mapfile", "readarray"), "_soperator_input")
        calls |= dict.fromkeys(_TELL, "_soperator_tell told")
        calls |= dict.fromkeys(_LOOK_UP, "_soperator_tell decide")
        calls |= dict.fromkeys({*_BUILTINS, *self.ignored} - _WITHOUT_EFFECT, "_soperator_tell unknown")
        # One that is set to what it was, or else to a default, is still what the script was called with.
        replaced = _set_in(self.text) - set(_WITH_DEFAULT.findall(self.text))
        inherited = self.variables.keys() - replaced - OF_A_JOB
        return [
            # What bash is started with is not the script's.
            "unset BASH_ENV; export -n LC_ALL OLDPWD PATH PWD SHLVL",
            f"_soperator_ids={standins.PREFIX}",
            f"_soperator_ignored=({shlex.join(self.ignored)})",
            Path(__file__).with_name("recorder.bash").read_text(),
            *(f'function {name} {{ sbatch "$@"; }}' for name in sorted(set(_SBATCH_BY_PATH.findall(self.text)))),
            *(f'function {name} {{ {call} {name} "$@"; }}' for name, call in calls.items()),
            # What `set -x` shows is not read: there may be more of it than can be looked through at each question.
            "unset RANDOM SRANDOM SECONDS EPOCHSECONDS EPOCHREALTIME; BASH_XTRACEFD=195",
            *(f"{name}={shlex.quote(value)}" for name, value in self._set_before(marks).items()),
            *(f"export {name}" for name in inherited if re.fullmatch(_NAME, name) and self.variables[name]),
            "_soperator_begin",
        ]

    def _set_before(self, marks: Marks) -> dict[str, str]:
        """The variables that the script finds: those that are given, and marks for unknown ones.

        Variables that it sets itself, or has a default for, are left unset.
        """
        known = _set_in(self.text)
        for extended in _EXTENDED.finditer(self.text):
            known -= {extended[1]} - _set_in(self.text[: extended.start()])
        known = known.union(_WITH_DEFAULT.findall(self.text), _OF_BASH)
        used = [*_USED.findall(self.text), *(name for _, name, _ in _terms(self.text))]
        unknown = {name for name in used if name not in known and not name.startswith("BASH_")}
        found = {name: marks.of(_unset(name)) for name in sorted(unknown.union(_OF_THE_MACHINE))}
        return found | {name: value for name, value in self.variables.items() if re.fullmatch(_NAME, name)}

    def _arguments(self, marks: Marks) -> list[str]:
        """The script's arguments as far as they are given, with marks for others that it uses."""
        if "@" in self.variables:
            return self.variables["@"].split()
        used = {name for found in _ARGUMENT.findall(self.text) for name in found if name}
        last = max((int(name) for name in used.union(self.variables) if name.isdecimal()), default=0)
        if not (all(map(str.isdecimal, used)) or any(map(str.isdecimal, self.variables))):
            # One that only "$@" has, as after a shift.
            last += 1
        return [self.variables.get(str(number), marks.of(_unset(str(number)))) for number in range(1, last + 1)]

    def _beginning(self, line: int) -> int:
        """The first line of a command that bash has read up to this line."""
        lines = self.text.split("\n")
        line = min(line, len(lines))
        while line > 1 and lines[line - 2].endswith("\\"):
            line -= 1
        return line

    def _heed(self, errors: str, prelude: str, name: str, marks: Marks, line: int) -> None:
        """Raise for messages of bash about the script, unlike output of the script itself."""
        for said in errors.splitlines():
            if ": warning: setlocale: " in said:
                # The cluster may have a language that is not installed here.
                continue
            if said.startswith(prelude):
                # A builtin that has been called in a function of the prelude.
                raise ShellChainError(line, _explained("", said.split(": ", 2)[2]))
            if said.startswith(name) and (found := _COMPLAINT.match(said[len(name) :])):
                line, complaint = self._beginning(int(found[1])), found[2]
                if unended := _UNENDED.search(complaint):
                    problem = f"the here-document has no end {unended[2]!r}: write it, at the beginning of a line"
                    raise ShellChainError(int(unended[1]), problem)
                if standins.is_marked(complaint):
                    raise ShellChainError(line, marks.cause(complaint))
                subject, _, problem = complaint.rpartition(": ")
                if problem == "No such file or directory" and not subject.startswith("/"):
                    raise FileWanted(subject)
                raise ShellChainError(line, _explained(subject, problem))


def _terms(text: str) -> list[tuple[str, str, str]]:
    return _TERM.findall(" ; ".join(_ARITHMETIC.findall(text)))


def _set_in(text: str) -> set[str]:
    text = _TEXT.sub("''", text)
    found = {name for found in _SETS.findall(text) for said in found for name in _WORD.findall(said)}
    return found.union(name for before, name, after in _terms(text) if before or after)


def _pipe(stack: ExitStack) -> tuple[FileIO, FileIO]:
    read, write = os.pipe()
    return stack.enter_context(FileIO(read)), stack.enter_context(FileIO(write, "w"))


def _opened(pid: str, folder: str) -> str | None:
    """A file of this machine that a process of the script has opened."""
    with suppress(OSError):
        for descriptor in Path("/proc", pid, "fd").iterdir():
            file = os.readlink(descriptor)
            # bash keeps long here-documents in files that have no name any more.
            if not file.startswith((f"{folder}/", "pipe:", os.devnull)) and not file.endswith(" (deleted)"):
                return file
    return None


def _requests(asked: FileIO) -> Iterator[list[str]]:
    """The texts of each request, as they come; each needs an answer."""
    deadline, text, line = time.monotonic() + SECONDS, b"", 1
    while True:
        count, _, rest = text.partition(b"\0")
        fields = rest.split(b"\0")
        if count and len(fields) > int(count) + 3:
            taken = [field.decode(errors="replace") for field in fields[: int(count) + 3]]
            text, line = b"\0".join(fields[int(count) + 3 :]), int(taken[1])
            yield taken
            continue
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([asked], [], [], left)[0]:
            raise ShellChainError(line, ENDLESS)
        some = asked.read(65536)
        if not some:
            return
        text += some


def _explained(subject: str, problem: str) -> str:
    if problem == "restricted" or "in command names" in problem:
        return not_understood(subject.partition(":")[0])
    if problem == "cannot redirect output":
        return missing(subject.partition(":")[0])
    if problem == "unbound variable":
        return _unset(subject)
    if problem == "readonly variable" and subject in ("PATH", "SHELL"):
        return f"{subject} is set, which the jobs would not get: set it in their scripts"
    if problem == "No such file or directory":
        return not_readable(subject)
    if subject == "no match":
        return f"{problem!r} is a pattern for files on the cluster: name them, or quote it"
    whole = f"{subject}: {problem}" if subject else problem
    return f"bash says {whole!r}: mend it, or write the sbatch lines out, one after the other"


def missing(file: str) -> str:
    return (
        f"the file that is written here, {file}, would be missing: write it beforehand, or give a script to sbatch "
        f"itself (sbatch <<'EOF'); if it does not matter here, ignored= passes over its command"
    )


def not_readable(file: str) -> str:
    return f"{file} is read, which only the cluster has: write down what is in it"


def not_understood(name: str) -> str:
    if name == "cd":
        return (
            "where this cd leads to is known only on the cluster: write the path; ignored=['cd'] passes over it, paths "
            "being relative to there"
        )
    return (
        f"{name!r} is not understood, and what it does would be lost: take it into a job or a task of its own; "
        f"if it does not matter here, ignored=[{name!r}], or --ignore {name} on the command line, passes over it"
    )


def _unset(name: str) -> str:
    told = f"say what it is, variables={{{name!r}: ...}}, or --variable {name}=... on the command line"
    if name.isdecimal():
        none = ", or that there is none, variables={'@': ''}"
        return f"${name} is an argument of the script: {told}{none}"
    return f"${name} is not set in the script: set it there, or {told}"


def _without_away(text: str, away: list[str]) -> str:
    """The script without redirections to /dev/null and the like, which restricted bash refuses as any others."""

    def replaced(found: re.Match[str]) -> str:
        if found[0] not in away:
            away.append(found[0])
        number = _FIRST_AWAY + away.index(found[0])
        return f">&{number} 2>&{number}" if found["both"] else f"{found['from']}>&{number}"

    return _AWAY.sub(replaced, _NOT_A_FILE.sub(_FILE, _READ.sub(rf"\1{_CAT}", text)))


def _as_written(text: str, away: Sequence[str]) -> str:
    """A text of the script with its own redirections, as the scripts of jobs have them, too."""

    def original(found: re.Match[str]) -> str:
        number = int(found[1]) - _FIRST_AWAY
        return away[number] if number < len(away) else found[0]

    return _WAS_AWAY.sub(original, text.replace(_FILE, "[[ ! ").replace(_CAT, ""))
