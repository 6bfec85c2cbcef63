"""What every way to a Slurm can do: answer the requests of ``slurm.requests`` and ``slurm.files``, and be closed."""

from __future__ import annotations

from typing import Protocol, TypeVar

from airflow_provider_soperator.slurm.requests import Request

T = TypeVar("T")


class Transport(Protocol):
    """Asks one Slurm and waits for the answer; any number of tasks may ask at once.

    Whatever Slurm says comes back as the request's own result type or as a ``SlurmError``; whatever happens on the
    way is a ``TransportError``. ``NotSupported`` is raised before anything is sent.
    """

    async def ask(self, request: Request[T]) -> T: ...

    async def close(self) -> None: ...
