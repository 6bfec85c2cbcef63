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
    """It could never be moved so: nothing was touched, and another try would end the same."""


class CapacityBusy(CapacityError):
    """Somebody else is moving the same capacity just now."""
