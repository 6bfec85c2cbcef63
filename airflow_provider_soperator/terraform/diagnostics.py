"""Terraform's errors and warnings, from its JSON or its text output."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: The frame around an error.
_FRAME = re.compile(r"^[╷│╵] ?", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HEADING = re.compile(r"^(Error|Warning): ", re.MULTILINE)
_PLACE = re.compile(r"^\s+on (?P<file>\S+) line (?P<line>\d+).*\n(?:\s+\d+: .*\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Diagnostic:
    """One error or warning."""

    severity: str
    summary: str
    detail: str = ""
    #: The resource in question.
    address: str = ""
    file: str = ""
    line: int = 0

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Diagnostic:
        """A diagnostic from Terraform's JSON, without lines of code, which may contain our values."""
        place = document.get("range") or {}
        return cls(
            severity=document.get("severity", "error"),
            summary=_plain(document.get("summary", "")),
            detail=_plain(document.get("detail", "")),
            address=document.get("address", ""),
            file=place.get("filename", ""),
            line=place.get("start", {}).get("line", 0),
        )

    @property
    def is_error(self) -> bool:
        """True for an error, which stops Terraform."""
        return self.severity == "error"

    @property
    def words(self) -> str:
        """Summary and detail in one line."""
        return " ".join(f"{self.summary}: {self.detail}".strip(": ").split())

    @property
    def where(self) -> str:
        """The resource and the place in the recipe."""
        place = f"{self.file}:{self.line}" if self.file else ""
        return ", ".join(filter(None, (self.address, place)))

    def lines(self) -> Iterator[str]:
        """The full text, in lines for a log."""
        yield f"{'Error' if self.is_error else 'Warning'}: {self.summary}" + (f" ({self.where})" if self.where else "")
        for line in self.detail.splitlines():
            yield f"  {line}".rstrip()


def errors(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Diagnostics that are errors."""
    return tuple(one for one in found if one.is_error)


def from_text(output: str) -> tuple[Diagnostic, ...]:
    """Errors and warnings in the output of a command without ``-json``.

    >>> from_text("\\u2577\\n\\u2502 Error: Failed to query\\n\\u2502 \\n\\u2502 no route\\n\\u2575\\n")[0].words
    'Failed to query: no route'
    """
    plain = _FRAME.sub("", _COLOUR.sub("", output))
    pieces = _HEADING.split(plain)
    found = []
    for severity, text in zip(pieces[1::2], pieces[2::2], strict=True):
        summary, _, detail = text.strip().partition("\n")
        place = _PLACE.search(detail)
        found.append(
            Diagnostic(
                severity=severity.lower(),
                summary=summary,
                detail=_PLACE.sub("", detail).strip(),
                file=place["file"] if place else "",
                line=int(place["line"]) if place else 0,
            )
        )
    return tuple(found)


def _plain(text: str) -> str:
    return _COLOUR.sub("", text).strip()
