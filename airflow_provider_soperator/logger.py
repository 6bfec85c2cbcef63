"""Protocol of loggers: Airflow's for tasks, or Python's."""

from __future__ import annotations

from typing import Any, Protocol


class Logger(Protocol):
    """Takes a text with places for values, and the values."""

    def info(self, event: str, *args: Any) -> Any: ...

    def warning(self, event: str, *args: Any) -> Any: ...

    def error(self, event: str, *args: Any) -> Any: ...
