"""What a shell script is made of, as far as scripts that submit jobs go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")


class ShellChainError(ValueError):
    """What is not understood in a script, where, and what to do about it.

    >>> str(ShellChainError(3, "`while` is not understood: write one line for each job"))
    'line 3: `while` is not understood: write one line for each job'
    """

    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        self.problem = problem
        super().__init__(f"line {line}: {problem}")


# What a script is made of


@dataclass(frozen=True)
class Text:
    """Letters that stand for themselves; unquoted ones can still be a pattern, braces or a tilde."""

    text: str
    quoted: bool


@dataclass(frozen=True)
class Parameter:
    """`$NAME`, or `${NAME}` with what follows the name: an operator and a word."""

    line: int
    name: str
    quoted: bool
    operator: str = ""
    argument: Word = ()


@dataclass(frozen=True)
class Substitution:
    """`$(...)` or backticks."""

    line: int
    body: tuple[Statement, ...]
    quoted: bool


Part = Text | Parameter | Substitution
Word = tuple[Part, ...]


@dataclass(frozen=True)
class Redirect:
    """`2> file`, or the text of a here-document."""

    operator: str
    target: Word


@dataclass(frozen=True)
class Assignment:
    """`NAME=word`, `NAME+=word`, or the same with an array."""

    name: str
    appends: bool
    value: Word
    elements: tuple[Word, ...] | None = None


@dataclass(frozen=True)
class Simple:
    """A command of words."""

    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True)
class For:
    """`for NAME in ITEMS; do BODY; done`."""

    line: int
    name: str
    items: tuple[Word, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True)
class If:
    """`if`, each `elif`, and `else`."""

    line: int
    branches: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True)
class Group:
    """`{ ...; }`."""

    line: int
    body: tuple[Statement, ...]


Command = Simple | For | If | Group


@dataclass(frozen=True)
class Pipeline:
    """Commands with `|` between them."""

    line: int
    commands: tuple[Command, ...]
    negated: bool


@dataclass(frozen=True)
class Statement:
    """Pipelines with `&&` and `||` between them."""

    first: Pipeline
    rest: tuple[tuple[str, Pipeline], ...]


def as_assignment(word: Word) -> Assignment | None:
    """The assignment that a word is, where the shell takes one.

    >>> as_assignment((Text("IDS+=:", quoted=False),))
    Assignment(name='IDS', appends=True, value=(Text(text=':', quoted=False),), elements=None)
    """
    first = word[0]
    found = _ASSIGNMENT.match(first.text) if isinstance(first, Text) and not first.quoted else None
    if found is None or not isinstance(first, Text):
        return None
    rest = first.text[found.end() :]
    return Assignment(found[1], bool(found[2]), (*((Text(rest, quoted=False),) if rest else ()), *word[1:]))


def literal(word: Word) -> str | None:
    """The word's letters, if it is nothing but letters."""
    texts = [part.text for part in word if isinstance(part, Text)]
    return "".join(texts) if len(texts) == len(word) else None


def substitutions(word: Word) -> Iterator[Substitution]:
    """Every command that an expansion of the word would run."""
    for part in word:
        if isinstance(part, Substitution):
            yield part
        elif isinstance(part, Parameter):
            yield from substitutions(part.argument)
