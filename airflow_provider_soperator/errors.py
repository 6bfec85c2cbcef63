"""Errors that all rooms share."""

from __future__ import annotations


class ConnectionMistake(ValueError):
    """A connection that cannot work as it is written; the message names the field."""
