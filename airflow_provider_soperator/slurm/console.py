"""What a job prints, as lines for a log: cut at any byte on its way here, with progress bars and worse in it."""

from __future__ import annotations

import codecs
import re

#: Letters of a line that are shown.
LONGEST_LINE = 4000

#: Escape sequences, but for colours, which a log can show.
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[@-ln-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()*+][0-9A-Za-z]|[=>78cDEHMNOZ])")
#: Characters that do not print, but for tabs and escapes.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class Console:
    """Bytes in as they come, whole lines out.

    Of a line that is overwritten again and again, as progress bars are, the newest form is shown once for each look.

    >>> console = Console()
    >>> console.feed(b"loss 0.1\\nstep 1\\rstep 2\\rstep"), console.feed(b" 3\\r"), console.end()
    (['loss 0.1', 'step 2'], ['step 3'], [])
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        #: The line that has not ended yet, from where it was last begun anew.
        self._open = ""
        #: What has been shown of it already; None: nothing.
        self._shown: str | None = None

    def feed(self, data: bytes) -> list[str]:
        *whole, self._open = (self._open + self._decode(data)).split("\n")
        lines: list[str] = []
        for line in whole:
            lines += self._show(line)
            self._shown = None
        overwritten, mark, rest = self._open.rpartition("\r")
        if mark:
            self._open = rest
            if overwritten.strip("\r"):
                lines += self._show(overwritten)
        return lines

    def end(self) -> list[str]:
        """The last line, if nothing has ended it."""
        left, self._open = self._open + self._decode(b"", True), ""
        return self._show(left) if left else []

    def _show(self, line: str) -> list[str]:
        text = _readable(line.rstrip("\r").rpartition("\r")[2])
        if self._shown is not None and text in (self._shown, ""):
            return []
        self._shown = text
        return [text]


def _readable(text: str) -> str:
    text = _UNPRINTABLE.sub("", _ESCAPES.sub("", text))
    return text if len(text) <= LONGEST_LINE else f"{text[:LONGEST_LINE]} … ({len(text) - LONGEST_LINE} more)"
