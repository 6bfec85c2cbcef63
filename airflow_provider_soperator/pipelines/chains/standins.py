"""Stand-ins in a script for values that only the cluster knows: the ids of jobs, and unknown values.

The stand-in of an id is a unique number. So it goes through quotes, variables, awk and cut as the real one would, and
is recognized anywhere. The stand-in of any other value is made of control characters, which no script has. Errors show
neither.
"""

from __future__ import annotations

import re

#: Prefix of each id. The whole has 18 digits, within the range of bash's integers.
PREFIX = "870217"
_ID = re.compile(rf"(?<!\d){PREFIX}(\d{{6}})(\d{{6}})(?!\d)")
_MARK = re.compile(r"\x02([\x03\x04]+)\x05")
_MARKED = re.compile(r"[\x02-\x05]")
_BITS = str.maketrans("01", "\x03\x04")


def stand_in(number: int) -> str:
    """The number for the id of a job, counted from 0.

    >>> stand_in(1)
    '870217000001142857'
    """
    # In the order of the jobs, as ids are.
    return f"{PREFIX}{number:06}{_check(number):06}"


def is_stand_in(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def is_within(text: str, count: int) -> bool:
    """True if a text is a part of the id of one of so many jobs."""
    return any(text in stand_in(number) for number in range(count))


def jobs_in(text: str) -> list[int]:
    """The jobs whose ids a text has; -1 for a number calculated from one.

    >>> jobs_in(f"afterok:{stand_in(0)}:{stand_in(3)}:17")
    [0, 3]
    """
    return [int(number) if int(check) == _check(int(number)) else -1 for number, check in _ID.findall(text)]


def _check(number: int) -> int:
    """Tells an id from one that is one more than another's."""
    return number * 142857 % 1_000_000


class Marks:
    """Marks of unknown values, with the numbers of their causes.

    >>> marks = Marks()
    >>> [marks.cause(f"/data/{marks.of(why)}/x") for why in ("the date is not known", "nor is this")]
    ['the date is not known', 'nor is this']
    """

    def __init__(self) -> None:
        self._causes: list[str] = []

    def of(self, cause: str) -> str:
        """The mark of a value that is unknown for this cause."""
        if cause not in self._causes:
            self._causes.append(cause)
        return f"\x02{self._causes.index(cause):b}\x05".translate(_BITS)

    def cause(self, text: str) -> str:
        """The cause of the first mark in a text."""
        found = _MARK.search(text)
        number = int(found[1].translate({3: "0", 4: "1"}), 2) if found else len(self._causes)
        # A part of a mark has another number, or none.
        unknown = "this is known only on the cluster: write it down"
        return self._causes[number] if number < len(self._causes) else unknown


def is_mark(text: str) -> bool:
    """True if nothing of a text is known."""
    return not _MARKED.sub("", text).strip()


def is_marked(text: str) -> bool:
    return _MARKED.search(text) is not None


def marks_in(text: str) -> str:
    """The marks of a text alone."""
    return "".join(re.findall(_MARKED, text))


def with_numbers(text: str) -> str:
    """A text with a number in place of each unknown value."""
    return _MARKED.sub("1", text)


def shown(text: str) -> str:
    """A text for people to read.

    >>> shown(f"afterok:{stand_in(0)} {Marks().of('it has not run')}")
    'afterok:ID …'
    """
    return _MARKED.sub("", _MARK.sub("…", _ID.sub("ID", text)))


class ShellChainError(ValueError):
    """A construct in a script that is not understood: its line, and the remedy.

    >>> str(ShellChainError(3, "'mkdir' is not understood: take it into a job"))
    "line 3: 'mkdir' is not understood: take it into a job"
    """

    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        self.problem = shown(problem)
        super().__init__(f"line {line}: {self.problem}")
