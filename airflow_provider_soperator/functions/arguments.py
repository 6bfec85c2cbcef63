"""Values that Airflow hands to functions, as values that are understood where there is no Airflow."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any


def plain(value: Any) -> Any:
    """The same of types that every Python has, as far as Airflow is what made them others.

    >>> import pendulum
    >>> plain({"at": [pendulum.datetime(2026, 11, 21, tz="UTC")]})
    {'at': [datetime.datetime(2026, 11, 21, 0, 0, tzinfo=datetime.timezone.utc)]}
    """
    if type(value) is dict:
        return {plain(key): plain(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    if isinstance(value, datetime) and type(value).__module__.startswith("pendulum."):
        return datetime.fromisoformat(value.isoformat())
    if isinstance(value, Sequence) and is_airflows(value):
        # The results of mapped tasks: each is fetched when it is looked at.
        return list(map(plain, value))
    return value


def is_airflows(value: Any) -> bool:
    """Whether a value is of a type that comes with Airflow."""
    return type(value).__module__.partition(".")[0] == "airflow"
