"""Options that are on or off, and may be templates."""

from __future__ import annotations

#: What a text says that means no.
_NO = frozenset({"", "0", "false", "no", "none", "off"})


def is_on(option: bool | str | None) -> bool:
    """Whether an option is on, once its template has been rendered.

    >>> is_on(True), is_on("False"), is_on("{}".format(None))
    (True, False, False)
    """
    return str(option).lower() not in _NO
