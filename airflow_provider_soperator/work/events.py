"""The events with which a task goes on after its trigger, and what a worker makes of them.

An event is ``{"status": "success", "result": ...}``, or has a ``message`` and one of the statuses ``failed`` (another
try may help), ``refused`` (no other try can) and ``timeout``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException


class WorkTimeout(AirflowException):
    """A task was not done within its ``timeout``."""


def succeeded(result: Any) -> dict[str, Any]:
    return {"status": "success", "result": result}


def failed(message: str) -> dict[str, Any]:
    return {"status": "failed", "message": message}


def refused(message: str) -> dict[str, Any]:
    return {"status": "refused", "message": message}


def timed_out(message: str) -> dict[str, Any]:
    return {"status": "timeout", "message": message}


def result_of(event: dict[str, Any], within: timedelta | None = None) -> Any:
    """The result, or the exception that the event stands for."""
    if event["status"] == "success":
        return event["result"]
    if event["status"] == "refused":
        raise AirflowFailException(event["message"])
    if event["status"] == "timeout":
        raise WorkTimeout(f"not done within {within}: {event['message']}" if within else event["message"])
    raise AirflowException(event["message"])
