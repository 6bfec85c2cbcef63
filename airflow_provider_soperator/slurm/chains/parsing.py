"""Reads the commands of a shell script. Nothing is run, and nothing is expanded.

The parser of all of bash that there is for Python, bashlex, is under the GPL, and tree-sitter guesses its way on where
it does not understand. Here that must be refused, and the part of the language that is in use is small.
"""

from __future__ import annotations

import re
from dataclasses import replace

from airflow_provider_soperator.slurm.chains.syntax import (
    Assignment,
    Command,
    For,
    Group,
    If,
    Pipeline,
    Redirect,
    Simple,
    Statement,
    Word,
    as_assignment,
    literal,
)
from airflow_provider_soperator.slurm.chains.words import Words

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REDIRECT = re.compile(r"([0-9]*)(<<<|<<-?|>>|>&|<&|&>>?|>\||[<>])")
_CLOSING = ("then", "elif", "else", "fi", "do", "done", "}", "esac")
_COMPOUND = ("while", "until", "case", "select", "function", "coproc", "time", "[[")


def parse(text: str, line: int = 1) -> tuple[Statement, ...]:
    """The statements of a script, whose first line has this number.

    >>> parse("JOB=$(sbatch a.sh) || exit 1")[0].rest[0][1].commands[0].words[0]
    (Text(text='exit', quoted=False),)
    """
    return _Commands(text, line).all_statements()


class _Commands(Words):
    def statements(self, closing: tuple[str, ...]) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while True:
            self._lines()
            if self._at >= len(self._text) or self._next(")"):
                break
            if (word := self._peek()) in _CLOSING:
                if word not in closing:
                    raise self.error(f"`{word}` closes nothing")
                return tuple(found)
            found.append(self._statement())
            self._blank()
            if self._next("&"):
                raise self.error("`&` starts a command beside the script", "take the & away: sbatch does not wait")
            if self._next(";;"):
                raise self.error("`;;` is not understood")
            if not (self._take(";") or self._next("\n", ")") or self._at >= len(self._text)):
                raise self.error(f"{self.rest()[:1]!r} is not understood here")
        if closing:
            raise self.error(f"`{closing[-1]}` is missing", "add it")
        return tuple(found)

    def _lines(self) -> None:
        while True:
            self._blank()
            if not self._next("\n"):
                return
            self._at = self._after_documents.get(self._at, self._at + 1)

    def _peek(self) -> str:
        found = re.compile(r"[^\s;&|<>()'\"$`\\]+").match(self._text, self._at)
        return found[0] if found else ""

    def _statement(self) -> Statement:
        first = self._pipeline()
        rest: list[tuple[str, Pipeline]] = []
        while True:
            self._blank()
            operator = self._text[self._at : self._at + 2]
            if operator not in ("&&", "||"):
                return Statement(first, tuple(rest))
            self._at += 2
            self._lines()
            rest.append((operator, self._pipeline()))

    def _pipeline(self) -> Pipeline:
        line = self.line
        negated = False
        while self._peek() == "!":
            self._at += 1
            self._blank()
            negated = not negated
        commands = [self._command()]
        while True:
            self._blank()
            if self._next("||") or not self._take("|"):
                return Pipeline(line, tuple(commands), negated)
            if self._take("&"):
                raise self.error("`|&` is not understood", "write 2>&1 |")
            self._lines()
            commands.append(self._command())

    def _command(self) -> Command:
        line = self.line
        keyword = self._peek()
        if keyword == "for":
            return self._for(line)
        if keyword == "if":
            return self._if(line)
        if keyword == "{":
            self._at += 1
            body = self.statements(("}",))
            self._close("}")
            return Group(line, body)
        if keyword == "[[":
            return self._simple(line)
        if keyword in _COMPOUND:
            raise self.error(f"`{keyword}` is not understood")
        if self._next("("):
            raise self.error("`(`, a shell of its own or arithmetic, is not understood")
        return self._simple(line)

    def _close(self, keyword: str) -> None:
        if self._peek() != keyword:
            raise self.error(f"`{keyword}` is missing", "add it")
        self._at += len(keyword)
        self._blank()
        if self._next("<", ">"):
            raise self.error(f"a redirection of all up to `{keyword}` is not understood", "redirect each command")

    def _for(self, line: int) -> For:
        self._at += len("for")
        self._blank()
        name = self._match(_NAME)
        if name is None:
            raise self.error("this form of `for` is not understood", "write `for NAME in 1 2 3; do`")
        self._blank()
        if self._peek() != "in":
            raise self.error("`for` without `in` takes the script's arguments, which are not known", "name the items")
        self._at += len("in")
        items = []
        self._blank()
        while not self._next("\n", ";"):
            items.append(self._word())
            self._blank()
        self._take(";")
        self._lines()
        self._close("do")
        body = self.statements(("done",))
        self._close("done")
        return For(line, name[0], tuple(items), body)

    def _if(self, line: int) -> If:
        branches = []
        otherwise: tuple[Statement, ...] = ()
        while (keyword := self._peek()) in ("if", "elif"):
            self._at += len(keyword)
            condition = self.statements(("then",))
            self._close("then")
            branches.append((condition, self.statements(("elif", "else", "fi"))))
        if keyword == "else":
            self._at += len(keyword)
            otherwise = self.statements(("fi",))
        self._close("fi")
        return If(line, tuple(branches), otherwise)

    def _simple(self, line: int) -> Simple:
        assignments: list[Assignment] = []
        words: list[Word] = []
        redirects: list[Redirect] = []
        test = self._peek() == "[["
        while True:
            self._blank()
            # Between [[ and ]] these are no operators of the shell's own.
            test = test and literal(words[-1] if words else ()) != "]]"
            if self._at >= len(self._text) or (self._next("\n", ";", ")", "|") and not (test and self._next("||"))):
                break
            if test and self._next("&&", "||", "<", ">", "("):
                raise self.error("this test is not understood", "write it as [ ... ], one comparison each")
            if self._next("&") and not self._next("&>"):
                break
            if self._next("("):
                raise self.error("a function, or an array in this place, is not understood")
            if found := self._match(_REDIRECT):
                redirects.append(self._redirect(found[1], found[2]))
                continue
            word = self._word()
            if not words and (assignment := as_assignment(word)):
                array = not assignment.value and self._take("(")
                assignments.append(replace(assignment, elements=self._elements()) if array else assignment)
            else:
                words.append(word)
        if not (assignments or words or redirects):
            raise self.error("a command is missing", "add it, or take away what joins it to another")
        return Simple(line, tuple(assignments), tuple(words), tuple(redirects))

    def _elements(self) -> tuple[Word, ...]:
        found = []
        self._lines()
        while not self._take(")"):
            found.append(self._word())
            self._lines()
        return tuple(found)
