"""What can be wrong with the description of a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class SpecMistake(ValueError):
    """No cluster can be made from it. The message ends with what to do about it."""


class NotKnownYet(Exception):
    """Something that a cluster gets some time after it was made, so that another try may find it."""


def near(name: object, known: Iterable[str]) -> str:
    """The end of a sentence about a name that is not known.

    >>> "there is no 'sise'" + near("sise", ["size", "name"])
    "there is no 'sise'; did you mean size?"
    """
    names = sorted(known)
    found = get_close_matches(str(name), names, 1)
    return f"; did you mean {found[0]}?" if found else f"; there are {', '.join(names)}"
