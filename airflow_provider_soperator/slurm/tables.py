"""Tables that Slurm's commands print and that no free text in them can break.

Each question gets a separator of its own that nobody can have put into a job's name, and it follows every field, the
last of a row too. So fields may hold any byte: line breaks, the separators of others, text in no encoding at all.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_provider_soperator.slurm.errors import UnreadableAnswer


def new_separator() -> str:
    """Short, as it is printed as often as there are fields; 48 random bits, as it is guessed at most once."""
    # The first letter must be no digit: squeue would read it as part of a column's width.
    return f"~{secrets.token_urlsafe(6)}"


@dataclass(frozen=True)
class Table:
    """Columns to ask a command for, and how to read what it prints.

    >>> table = Table(("JobArrayId", "Name"), separator="~x")
    >>> table.format_words()
    ('--noheader', '--Format=JobArrayId:0~x,Name:0~x')
    >>> list(table.rows(b"1~xa|b\\nc~x\\n2~x~x\\n"))
    [('1', 'a|b\\nc'), ('2', '')]
    """

    columns: tuple[str, ...]
    separator: str = field(default_factory=new_separator, repr=False)

    def format_words(self) -> tuple[str, ...]:
        """Options for ``squeue`` and ``sinfo``. A width of 0 is the full width."""
        return ("--noheader", f"--Format={','.join(f'{column}:0{self.separator}' for column in self.columns)}")

    def parsable_words(self) -> tuple[str, ...]:
        """Options for ``sacct``."""
        return ("--noheader", "--parsable", f"--delimiter={self.separator}", f"--format={','.join(self.columns)}")

    def rows(self, printed: bytes) -> Iterator[tuple[str, ...]]:
        """The fields of each row; bytes that are no UTF-8 come as ``\\xff``."""
        fields = printed.decode(errors="backslashreplace").split(self.separator)
        width = len(self.columns)
        end = fields.pop()
        if len(fields) % width or end != ("\n" if fields else ""):
            raise UnreadableAnswer(f"a table of {width} columns ends in the middle of a row, near {end[-200:]!r}")
        for start in range(0, len(fields), width):
            first = fields[start]
            if start:
                # What ends the row before.
                if not first.startswith("\n"):
                    raise UnreadableAnswer(f"a table of {width} columns has a row that does not end: {first[:200]!r}")
                first = first[1:]
            yield (first, *fields[start + 1 : start + width])
