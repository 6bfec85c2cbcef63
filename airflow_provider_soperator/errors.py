"""Errors that all rooms share."""

from __future__ import annotations


class ConnectionMistake(ValueError):
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
