"""Reader of #SBATCH lines, with sbatch's own rules."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from airflow_provider_soperator.slurm.job_description import BY_LONG, OPTIONS, Option

_SPACE = " \t\n\v\f\r"
_MAGIC = ("#SBATCH", "#SLURM")
_SEPARATOR = re.compile(r"(?:hetjob|packjob)(?:[ \t\v\f\r]|$)", re.IGNORECASE)


class DirectiveError(ValueError):
    """An #SBATCH line that sbatch would reject."""

    def __init__(self, line: int, problem: str) -> None:
        self.problem = problem
        super().__init__(f"line {line}: {problem}")


@dataclass
class Component:
    """Fields of one job, or one part of a heterogeneous job, from #SBATCH lines."""

    #: Values of a job's fields, and of `array_limit` and `env` if an option sets those as well.
    fields: dict[str, Any] = field(default_factory=dict)
    extra_args: list[str] = field(default_factory=list)
    #: The last line that sets a field, or an option without a field.
    lines: dict[str, int] = field(default_factory=dict)


def head(script: str) -> Iterator[str]:
    """The lines before the first command, which comes soon in a large script."""
    return takewhile(lambda line: line.strip(_SPACE)[:1] in ("", "#"), io.StringIO(script))


def read(script: str) -> list[Component]:
    """Read the components of a script's #SBATCH lines: one, and one more for each "#SBATCH hetjob".

    >>> read("#!/bin/sh\\n#SBATCH -N2 --comment='a b' # two\\nhostname\\n#SBATCH -N9")[0].fields
    {'nodes': 2, 'comment': 'a b'}
    """
    components = [Component()]
    words: list[tuple[int, str]] = []
    for number, line in enumerate(head(script), start=1):
        magic = next((word for word in _MAGIC if line.startswith(word)), None)
        if magic is None:
            continue
        rest = line[len(magic) :].rstrip("\n").lstrip(_SPACE)
        if _SEPARATOR.match(rest):
            _read_options(words, components[-1])
            components.append(Component())
            words = []
            rest = _SEPARATOR.sub("", rest, count=1)
        words += ((number, word) for word in split(rest, number))
    _read_options(words, components[-1])
    return components


#: Options of other schedulers, which sbatch translates; and its option to leave them alone.
_FOREIGN, IGNORE_FOREIGN = re.compile(r"#(?:BSUB|PBS)\s*[^\s#]"), "--ignore-pbs"
_FOREIGN_WITHIN = 100


def foreign_line(script: str) -> str:
    """The first #PBS or #BSUB line that sbatch would translate, beside its #SBATCH lines; empty if there is none.

    >>> foreign_line("#!/bin/sh\\nhostname\\n#PBS -l nodes=2\\n")
    '#PBS -l nodes=2'
    """
    others = 0
    for line in io.StringIO(script):
        if _FOREIGN.match(line):
            return line.rstrip()
        # Past the first command, too.
        others += not line.startswith("#")
        if others > _FOREIGN_WITHIN:
            break
    return ""


# Words


def split(line: str, number: int = 1) -> list[str]:
    """Split a line into words: both kinds of quotes group, a backslash escapes the next character, even in quotes.

    >>> split(r'--a="b \\" c" -d e\\ f # not this')
    ['--a=b " c', '-d', 'e f']
    """
    words: list[str] = []
    position = 0
    while True:
        while position < len(line) and line[position] in _SPACE:
            position += 1
        if position < len(line) and line[position] == ":":
            raise DirectiveError(number, f"sbatch rejects a word that begins with ':': {line!r}")
        word, position = _word(line, position, number)
        if word is None:
            return words
        words.append(word)


def _word(line: str, position: int, number: int) -> tuple[str | None, int]:
    letters: list[str] = []
    quote = ""
    while position < len(line) and (quote or line[position] not in _SPACE):
        letter = line[position]
        if letter == "#" and not quote:
            break
        position += 1
        if letter == "\\":
            escaped = line[position : position + 1]
            # Before other space the backslash is lost, and the word ends.
            if escaped and (quote or escaped == " " or escaped not in _SPACE):
                letters.append(escaped)
                position += 1
        elif letter == quote:
            quote = ""
        elif letter in "\"'" and not quote:
            quote = letter
        else:
            letters.append(letter)
    if quote:
        raise DirectiveError(number, f"{quote} is not closed: {line!r}")
    # To sbatch an empty word is the end of the line.
    return "".join(letters) or None, position


# Options

#: Options of sbatch without a field, for `extra_args`, and whether they take an argument.
UNTYPED: Mapping[str, str] = {
    **dict.fromkeys(("bbf", "cluster", "cluster-constraint", "context", "export-file", "extra-node-info"), "required"),
    **dict.fromkeys(("autocomplete", "gid", "mem-bind", "nodefile", "ntasks-per-tres", "uid", "wrap"), "required"),
    **dict.fromkeys(("container-type", "mem-update", "resources"), "required"),
    **dict.fromkeys(("get-user-env", "oom-kill-step", "propagate", "resv-ports", "x11"), "optional"),
    **dict.fromkeys(("help", "ignore-pbs", "parsable", "quiet", "stepmgr", "test-only", "usage", "verbose"), "no"),
    **dict.fromkeys(("version", "wait"), "no"),
}

_ALIASES = {"tasks-per-node": "ntasks-per-node", "jobname": "job-name"}
_UNTYPED_SHORT = dict(
    zip("BFQVWhv", ("extra-node-info", "nodefile", "quiet", "version", "wait", "help", "verbose"), strict=True)
)

_BY_SHORT = {option.short: option for option in OPTIONS if option.short}


def resolve_long(name: str) -> tuple[str, str] | None:
    """An option's full name, and whether it takes an argument, from its name or, as in getopt, a unique prefix."""
    known = {long: option.takes_argument for long, option in BY_LONG.items()} | dict(UNTYPED)
    known |= {alias: known[long] for alias, long in _ALIASES.items()}
    candidates = [name] if name in known else [long for long in known if long.startswith(name)]
    full = {_ALIASES.get(candidate, candidate) for candidate in candidates}
    if not name or len(full) != 1:
        return None
    long = full.pop()
    return long, known[long]


def resolve_short(letter: str) -> tuple[str, str] | None:
    if letter in _BY_SHORT:
        return _BY_SHORT[letter].long, _BY_SHORT[letter].takes_argument
    long = _UNTYPED_SHORT.get(letter)
    return (long, UNTYPED[long]) if long else None


def options_in(word: str) -> Iterator[str]:
    """The full names of the known options in one word of a command line.

    >>> [*options_in("--mem=4G")], [*options_in("-HWN2")], [*options_in("--of-a-plugin")]
    (['mem'], ['hold', 'wait', 'nodes'], [])
    """
    is_long = word.startswith("--")
    for name in [word[2:].partition("=")[0]] if is_long else word[1:]:
        resolved = resolve_long(name) if is_long else resolve_short(name)
        if resolved is None:
            return
        yield resolved[0]
        if resolved[1] != "no":
            return


def _read_options(words: Iterable[tuple[int, str]], into: Component) -> None:
    for number, word in _read_words(words, into):
        raise DirectiveError(number, f"{word!r} is not an option")


def _read_words(words: Iterable[tuple[int, str]], into: Component) -> list[tuple[int, str]]:
    """Read options up to the first other word; returns the words from there on."""
    rest = iter(words)
    for number, word in rest:
        if word == "--":
            break
        if word.startswith("--"):
            _read_long(number, word[2:], rest, into)
        elif word.startswith("-") and word != "-":
            _read_short(number, word[1:], rest, into)
        else:
            return [(number, word), *rest]
    return list(rest)


def read_words(words: Sequence[str]) -> Component:
    """Read words of a command line, all of which are options."""
    into = Component()
    _read_options(((1, word) for word in words), into)
    return into


def read_command(words: Sequence[str]) -> tuple[Component, list[str]]:
    """Read the options of a command line; returns also the words after them.

    >>> options, rest = read_command(["-N", "2", "train.sh", "-v"])
    >>> options.fields, rest
    ({'nodes': 2}, ['train.sh', '-v'])
    """
    into = Component()
    rest = _read_words(((1, word) for word in words), into)
    return into, [word for _, word in rest]


def _read_long(number: int, word: str, rest: Iterator[tuple[int, str]], into: Component) -> None:
    name, equals, value = word.partition("=")
    resolved = resolve_long(name)
    if resolved is None:
        # From a SPANK plugin, or a newer Slurm. Whether it takes the next word as its value is unknown.
        into.extra_args.append(f"--{word}")
        into.lines[name] = number
        return
    _keep(number, *resolved, value if equals else None, rest, into)


def _read_short(number: int, letters: str, rest: Iterator[tuple[int, str]], into: Component) -> None:
    while letters:
        resolved = resolve_short(letters[0])
        if resolved is None:
            raise DirectiveError(number, f"unknown option -{letters[0]}")
        letters = letters[1:]
        value = None
        if resolved[1] != "no":
            value, letters = letters or None, ""
        _keep(number, *resolved, value, rest, into)


def _keep(
    number: int, long: str, takes: str, value: str | None, rest: Iterator[tuple[int, str]], into: Component
) -> None:
    """Keep an option with its value, which may be the next of the other words."""
    if takes == "no" and value is not None:
        if long != "requeue":
            raise DirectiveError(number, f"--{long} takes no value")
        # From 25.11 on it may have one, "expedite".
        into.extra_args.append(f"--{long}={value}")
        into.lines[long] = number
        return
    if takes == "required" and value is None:
        following = next(rest, None)
        if following is None:
            raise DirectiveError(number, f"--{long} needs a value")
        value = following[1]
    option = BY_LONG.get(long)
    if option is None:
        into.extra_args.append(f"--{long}" if value is None else f"--{long}={value}")
        into.lines[long] = number
        return
    try:
        into.fields |= _fields(option, value)
    except ValueError as problem:
        raise DirectiveError(number, f"--{long}: {problem}") from None
    into.lines[option.field] = number


def _fields(option: Option, value: str | None) -> Mapping[str, Any]:
    if option.constant is not None:
        return {option.field: option.constant}
    if value is None:
        return {option.field: option.bare}
    if option.field == "array":
        indices, percent, limit = value.partition("%")
        if percent and not limit.isdecimal():
            raise ValueError(f"{value!r} has no number after '%'")
        return {"array": indices, "array_limit": int(limit) if percent else None}
    if option.field == "export":
        return exported(value)
    return {option.field: option.kind.read(value)}


def exported(value: str) -> Mapping[str, Any]:
    """The names in a value of --export, and the variables that it sets, as fields.

    >>> exported("ALL,A=1")
    {'export': 'ALL', 'env': {'A': '1'}}
    """
    names: list[str] = []
    env: dict[str, str] = {}
    # Commas split outside of quotes; only quotes that enclose a whole token are removed.
    for token in re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^,'\"])+", value):
        if len(token) > 1 and token[0] == token[-1] and token[0] in "'\"":
            token = token[1:-1]
        name, equals, content = token.partition("=")
        if equals:
            env[name] = content
        elif token:
            names.append(token)
    # Values alone imply NONE.
    found: dict[str, Any] = {"export": ",".join(names) or "NONE"}
    return found | ({"env": env} if env else {})
