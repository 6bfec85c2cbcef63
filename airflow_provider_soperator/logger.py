"""What is needed of a logger, be it Airflow's for tasks or one of Python's."""

from __future__ import annotations

from typing import Any, Protocol


class Logger(Protocol):
    """Takes a text with places for values, and the values."""

    def info(self, event: str, *args: Any) -> Any: ...

    def warning(self, event: str, *args: Any) -> Any: ...
