"""Reads the words of a shell script: quotes, here-documents, variables, and the commands within words."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from airflow_provider_soperator.slurm.chains.syntax import (
    Parameter,
    Part,
    Redirect,
    ShellChainError,
    Statement,
    Substitution,
    Text,
    Word,
)

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[?#@*$!-]")
_BRACED_PARAMETER = re.compile(rf"#?[A-Za-z_][A-Za-z0-9_]*(?:\[[^]]*\])?|{_PARAMETER.pattern}")
_OPERATOR = re.compile(r":?[-=+?]|##?|%%?|//?")
_BLANK = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
META = " \t\n;&|<>()"
PLAINLY = "write the sbatch lines out, one after the other"


class Words(ABC):
    """A script that is read from its beginning to its end. How commands are read is said by who derives from it."""

    def __init__(self, text: str, line: int) -> None:
        self._text = text
        self._line = line
        self._at = 0
        #: Where the line after the here-documents of a line begins, by the place of that line's end.
        self._after_documents: dict[int, int] = {}

    @property
    def line(self) -> int:
        return self._line + self._text.count("\n", 0, self._at)

    def rest(self) -> str:
        return self._text[self._at :]

    def error(self, problem: str, remedy: str = PLAINLY) -> ShellChainError:
        return ShellChainError(self.line, f"{problem}: {remedy}")

    def _next(self, *candidates: str) -> bool:
        return self._text.startswith(candidates, self._at)

    def _take(self, expected: str) -> bool:
        if not self._next(expected):
            return False
        self._at += len(expected)
        return True

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        if found := pattern.match(self._text, self._at):
            self._at = found.end()
        return found

    def _blank(self) -> None:
        # A # within a word begins no comment; here words have been read to their end.
        self._match(_BLANK)

    @abstractmethod
    def statements(self, closing: tuple[str, ...]) -> tuple[Statement, ...]:
        """Up to the end, a closing parenthesis, or one of the words that close what is open."""

    def all_statements(self) -> tuple[Statement, ...]:
        found = self.statements(())
        if self.rest():
            raise self.error(f"{self.rest()[:1]!r} stands where a command is expected")
        return found

    def _within(self, text: str, line: int) -> Words:
        """Reads a part of the script by itself."""
        return type(self)(text, line)

    def _redirect(self, descriptor: str, operator: str) -> Redirect:
        self._blank()
        if operator in ("<<", "<<-"):
            return Redirect("<<", self._here_document(indented=operator == "<<-"))
        return Redirect(descriptor + operator, self._word())

    def _here_document(self, indented: bool) -> Word:
        delimiter = self._word()
        if not all(isinstance(part, Text) for part in delimiter):
            raise self.error("the end of a here-document is not understood", "write a plain word such as EOF")
        end = "".join(part.text for part in delimiter if isinstance(part, Text))
        newline = self._text.find("\n", self._at)
        start = self._after_documents.get(newline, newline + 1)
        lines: list[str] = []
        at = start
        while newline >= 0 and at < len(self._text):
            line, ended, _ = self._text[at:].partition("\n")
            at += len(line) + len(ended)
            line = line.lstrip("\t") if indented else line
            if line == end:
                self._after_documents[newline] = at
                text = "".join(f"{line}\n" for line in lines)
                if any(isinstance(part, Text) and part.quoted for part in delimiter):
                    return (Text(text, quoted=True),)
                return self._within(text, self._line + self._text.count("\n", 0, start)).expandable()
            lines.append(line)
        raise self.error(f"the here-document has no end {end!r}", "add it as a line of its own")

    def _word(self) -> Word:
        parts: list[Part] = []
        while self._at < len(self._text) and self._text[self._at] not in META:
            if self._take("\\\n"):
                continue
            if self._take("\\"):
                parts.append(Text(self._letter(), quoted=True))
            elif self._take("'"):
                parts.append(Text(self._until("'"), quoted=True))
            elif self._take('"'):
                parts += self._parts('"')
            elif self._next("$'", '$"'):
                raise self.error(f"{self.rest()[:2]} is not understood", "write plain quotes")
            elif self._next("$", "`"):
                parts.append(self._expansion(quoted=False))
            else:
                parts.append(Text(self._letter(), quoted=False))
        if not parts:
            raise self.error("a word is missing", "add it")
        return _joined(parts)

    def expandable(self) -> Word:
        """All of the text as one word, as the text of a here-document is."""
        return _joined(self._parts(""))

    def _letter(self) -> str:
        self._at += 1
        return self._text[self._at - 1 : self._at]

    def _until(self, quote: str) -> str:
        end = self._text.find(quote, self._at)
        if end < 0:
            raise self.error(f"{quote} has no other half", "close the quote")
        start, self._at = self._at, end + 1
        self._not_over(self._awaited(), start)
        return self._text[start:end]

    def _parts(self, closing: str) -> list[Part]:
        """Within double quotes, or a here-document."""
        start, awaited = self._at, self._awaited()
        parts: list[Part] = [Text("", quoted=True)]  # "" is a word, too
        while not (closing and self._next(closing)):
            if self._at >= len(self._text):
                if closing:
                    raise self.error(f"{closing} has no other half", "close the quote")
                break
            if self._take("\\\n"):
                continue
            if self._next("\\") and self._text[self._at + 1 : self._at + 2] in ("$", "`", "\\", closing or "$"):
                self._at += 1
                parts.append(Text(self._letter(), quoted=True))
            elif self._next("$", "`"):
                parts.append(self._expansion(quoted=True))
            else:
                parts.append(Text(self._letter(), quoted=True))
        self._take(closing)
        self._not_over(awaited, start)
        return parts

    def _awaited(self) -> int:
        """The end of the line after which a here-document of this line begins."""
        return max(self._after_documents, default=-1)

    def _not_over(self, line_end: int, start: int) -> None:
        if start <= line_end < self._at:
            raise self.error("a quote goes over the beginning of a here-document", "end the line after <<")

    def _expansion(self, quoted: bool) -> Part:
        line = self.line
        if self._take("`"):
            inner = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL).match(self._text, self._at)
            assert inner is not None  # it matches nothing, too
            self._at = inner.end()
            if not self._take("`"):
                raise self.error("` has no other half", "close it")
            escaped = re.compile(r"\\([`\\$\"])" if quoted else r"\\([`\\$])")
            return Substitution(line, self._within(escaped.sub(r"\1", inner[0]), line).all_statements(), quoted)
        if self._next("$(("):
            raise self.error("arithmetic is not understood", "write the number")
        if self._take("$("):
            body = self.statements(())
            if not self._take(")"):
                raise ShellChainError(line, "$( has no other half: close it")
            return Substitution(line, body, quoted)
        if self._take("${"):
            return self._braced(line, quoted)
        self._take("$")
        name = self._match(_PARAMETER)
        if name is None:
            return Text("$", quoted)
        # Only the first digit is the name: $12 is ${1}2.
        if name[0].isdecimal():
            self._at -= len(name[0]) - 1
            return Parameter(line, name[0][0], quoted)
        return Parameter(line, name[0], quoted)

    def _braced(self, line: int, quoted: bool) -> Parameter:
        name = self._match(_BRACED_PARAMETER)
        if name is None or (name[0] == "!" and not self._next("}")):
            raise self.error("this form of ${...} is not understood")
        if self._take("}"):
            return Parameter(line, name[0], quoted)
        operator = self._match(_OPERATOR)
        if operator is None:
            raise self.error(f"${{{name[0]}{self.rest()[:1]}...}} is not understood")
        parts: list[Part] = []
        while not self._take("}"):
            if self._at >= len(self._text):
                raise ShellChainError(line, f"${{{name[0]}...}} has no end: close it")
            if self._take("\\"):
                parts.append(Text(self._letter(), quoted=True))
            elif self._take('"'):
                parts += self._parts('"')
            elif self._next("'") and not quoted:
                self._at += 1
                parts.append(Text(self._until("'"), quoted=True))
            elif self._next("$", "`"):
                parts.append(self._expansion(quoted))
            else:
                parts.append(Text(self._letter(), quoted=False))
        return Parameter(line, name[0], quoted, operator[0], _joined(parts))


def _joined(parts: list[Part]) -> Word:
    """Neighbouring letters of one kind as one part."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, Text) and isinstance(last, Text) and part.quoted == last.quoted:
            found[-1] = Text(last.text + part.text, part.quoted)
        else:
            found.append(part)
    return tuple(found)
