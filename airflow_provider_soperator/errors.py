"""Errors that all rooms share, and remedies for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: object, known: Iterable[object], likeness: float = 0.6) -> str:
    """The known name that is most like this one; empty if none is."""
    return next(iter(get_close_matches(str(name), map(str, known), 1, likeness)), "")


def name_remedy(name: object, known: Iterable[object], otherwise: str | None = None) -> str:
    """The remedy for an unknown name: the nearest known one, else all of them, or another text.

    >>> name_remedy("drianed", ["idle", "drained"])
    "did you mean 'drained'?"
    >>> name_remedy("x", ["idle", "drained"])
    'there are idle, drained'
    """
    names = list(map(str, known))
    if near := nearest(name, names):
        return f"did you mean {near!r}?"
    return (f"there are {', '.join(names)}" if names else "there are none") if otherwise is None else otherwise


class ClusterError(Exception):
    """A cluster has rejected a request, or failed to carry it out, or could not be asked.

    ``retryable``: the same request may succeed later. ``unsettled``: it may have been carried out nevertheless.
    ``passing``: it may be over later without any change, so that a task can wait for that.
    """

    retryable = False
    unsettled = False
    remedy = ""

    @property
    def passing(self) -> bool:
        return self.retryable


class AirflowAway(ClusterError):
    """Airflow's own API has not answered, so that what it keeps is not known."""

    retryable = True


class LastingError(Exception):
    """It lasts until the task, its connection, a name or a right is changed: no other try of a task can succeed."""


class ConnectionMistake(LastingError, ValueError):
    """A connection that cannot work as it is written; the message names the field."""


class CapacityError(Exception):
    """Capacity cannot be moved. The message ends with what to do about it."""

    def __init__(self, said: str, remedy: str = "") -> None:
        self.said, self.remedy = said, remedy
        super().__init__(f"{said}: {remedy}" if remedy else said)


class CapacityMistake(CapacityError, ValueError):
    """The request can never succeed: nothing was touched, and a retry would fail the same way."""


class CapacityBusy(CapacityError):
    """Another shift is moving the same capacity."""
