"""What moves capacity in a Slurm needs of a client: that it answers."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

from airflow_provider_soperator.slurm.requests import Request

T = TypeVar("T")


class Ask(Protocol):
    """Puts questions to a Slurm."""

    def __call__(self, request: Request[T], /) -> Awaitable[T]: ...
