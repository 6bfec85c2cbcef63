"""What words stand for: variables, and commands within words, are replaced as a shell does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from airflow_provider_soperator.slurm.chains import texts
from airflow_provider_soperator.slurm.chains.syntax import (
    Parameter,
    Part,
    ShellChainError,
    Substitution,
    Text,
    Word,
)

_SPACE = re.compile(r"[ \t\n]+")
_RANGE = re.compile(r"\{(?P<first>\d+)\.\.(?P<last>\d+)(?:\.\.(?P<step>[1-9]\d*))?\}")
_BRACES = re.compile(r"\{[^}]*(?:,|\.\.)[^}]*\}")
_PATTERN = re.compile(r"[*?]|\[.+\]")


class Unknown(ShellChainError):
    """A value that only a run of the script on the cluster would tell.

    >>> Unknown(1, "HOME is not set in the script").line
    1
    """


class Expander:
    """Expands words with the variables as they are at the time; `run` gives the output of a command in a word."""

    def __init__(
        self,
        variables: Mapping[str, str | Unknown],
        arrays: Mapping[str, Sequence[str] | Unknown],
        run: Callable[[Substitution], str],
    ) -> None:
        self._variables = variables
        self._arrays = arrays
        self._run = run

    def text(self, word: Word) -> str:
        """As one text, as the value of a variable is."""
        return "".join(text for text, _ in self._pieces(word))

    def fields(self, word: Word, line: int) -> list[str]:
        """As the words that a command gets: what is not in quotes is split at spaces, and may be nothing."""
        found: list[str] = []
        current: str | None = None
        if numbers := _numbers(word):
            return numbers
        parts = [part for part in word if part != Text("", quoted=True)]
        only = parts[0] if len(parts) == 1 else None
        if isinstance(only, Parameter) and only.quoted and not only.operator:
            if only.name == "@":
                return self._parameter(only).split()
            if only.name.endswith("[@]") and not only.name.startswith("#"):
                return list(self._elements(only))
        for part in word:
            if isinstance(part, Text) and not part.quoted:
                _check(part.text, word, line)
        for text, splits in self._pieces(word):
            if not splits:
                current = (current or "") + text
                continue
            first, *others = _SPACE.split(text)
            current = (current or "") + first if first else current
            for other in others:
                if current is not None:
                    found.append(current)
                current = other or None
        return found if current is None else [*found, current]

    def _pattern(self, word: Word) -> re.Pattern[str]:
        """In patterns, what is quoted stands for itself."""
        parts = [(self._part(part), part.quoted) for part in word]
        return texts.glob("".join(re.sub(r"([*?\[\\])", r"\\\1", text) if quoted else text for text, quoted in parts))

    def _pieces(self, word: Word, splits: bool = False) -> Iterator[tuple[str, bool]]:
        """The texts that a word consists of, and whether each is split at its spaces."""
        for part in word:
            if isinstance(part, Parameter) and (chosen := self._chosen(part)) is not None:
                yield from ((text, inner and not part.quoted) for text, inner in self._pieces(chosen, splits=True))
            else:
                splitting = splits if isinstance(part, Text) else True
                yield self._part(part), splitting and not part.quoted

    def _chosen(self, part: Parameter) -> Word | None:
        """What stands in place of a variable's value: `${NAME:-this}`, `${NAME:+this}`."""
        kind = part.operator.lstrip(":")
        if kind not in ("-", "=", "+", "?"):
            return None
        value = self._value(part)
        if isinstance(value, Unknown):
            raise self._unknown(part, value)
        given = bool(value) if part.operator.startswith(":") else value is not None
        if kind == "+":
            return part.argument if given else ()
        return part.argument if kind == "-" and not given else None

    def _part(self, part: Part) -> str:
        if isinstance(part, Text):
            return part.text
        if isinstance(part, Substitution):
            return self._run(part).rstrip("\n")
        return self._parameter(part)

    def _unknown(self, part: Parameter, value: Unknown | None) -> Unknown:
        if value is not None:
            return Unknown(part.line, f"${part.name} is not known (line {value.line}: {value.problem})")
        what = "an argument of the script" if part.name.isdecimal() else "not set in the script"
        remedy = f"set it there, or say what it is, variables={{{part.name!r}: ...}}"
        return Unknown(part.line, f"${part.name} is {what}: {remedy}")

    def _elements(self, part: Parameter) -> Sequence[str]:
        """Of an array; a plain variable is one of a single element."""
        name = part.name.lstrip("#").partition("[")[0]
        value = self._arrays.get(name, self._variables.get(name))
        if value is None or isinstance(value, Unknown):
            raise self._unknown(part, value)
        return [value] if isinstance(value, str) else value

    def _value(self, part: Parameter) -> str | Unknown | None:
        name, bracket, index = part.name.partition("[")
        if name in self._arrays and not bracket:
            index = "0]"
        elif not bracket:
            if name.startswith("#") and len(name) > 1:
                return str(len(self._parameter(replace(part, name=name[1:]))))
            return self._variables.get(name)
        elements = self._elements(part)
        if name.startswith("#"):
            return str(len(elements))
        if index in ("@]", "*]"):
            separator = self._variables.get("IFS", " ") if index == "*]" and part.quoted else " "
            return str(separator)[:1].join(elements)
        number = index.rstrip("]")
        return elements[int(number)] if number.isdecimal() and int(number) < len(elements) else None

    def _parameter(self, part: Parameter) -> str:
        value = self._value(part)
        operator = part.operator
        if value is None or isinstance(value, Unknown):
            raise self._unknown(part, value)
        if operator in ("#", "##"):
            return texts.without_beginning(value, self._pattern(part.argument), operator == "##")
        if operator in ("%", "%%"):
            return texts.without_end(value, self._pattern(part.argument), operator == "%%")
        if operator in ("/", "//"):
            old, new = _at_slash(part.argument)
            replacement = self.text(new)
            return self._pattern(old).sub(lambda _: replacement, value, count=1 if operator == "/" else 0)
        return value


def _numbers(word: Word) -> list[str]:
    """The numbers of `{1..5}`."""
    only = word[0] if len(word) == 1 else None
    found = _RANGE.fullmatch(only.text) if isinstance(only, Text) and not only.quoted else None
    if found is None:
        return []
    ends = (found["first"], found["last"])
    first, last = map(int, ends)
    step = int(found["step"] or 1) * (1 if first <= last else -1)
    width = max(map(len, ends)) if any(end.startswith("0") and len(end) > 1 for end in ends) else 0
    return [str(number).zfill(width) for number in range(first, last + (1 if step > 0 else -1), step)]


def _check(text: str, word: Word, line: int) -> None:
    """Refuse what the shell would replace by names of files, or by several words."""
    if text.startswith("~") and word[0] == Text(text, quoted=False):
        raise Unknown(line, f"{text!r} is in a home folder that is not known: write the whole path")
    # In --nodelist=worker-[0-3] or afterok:1?afterok:2 nobody means files.
    if _PATTERN.search(text) and not (isinstance(word[0], Text) and word[0].text.startswith(("-", "after"))):
        raise Unknown(line, f"{text!r} is a pattern for files on the cluster: name them, or quote it if it is none")
    if _BRACES.search(text):
        raise Unknown(line, f"the braces in {text!r} are not understood: write the words out")


def _at_slash(word: Word) -> tuple[Word, Word]:
    """`old/new` of a replacement."""
    for index, part in enumerate(word):
        if isinstance(part, Text) and not part.quoted and "/" in part.text:
            old, _, new = part.text.partition("/")
            return (*word[:index], Text(old, quoted=False)), (Text(new, quoted=False), *word[index + 1 :])
    return word, ()
