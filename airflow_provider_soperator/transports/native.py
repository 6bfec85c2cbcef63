"""Slurm on this machine through pyslurm, and through Slurm's own commands where those know more.

pyslurm spares a process for each question that it answers exactly (see ``pyslurm_calls``). All else goes to the
commands, which a node of the cluster has beside libslurm.
"""

from __future__ import annotations

from typing import TypeVar

from airflow_provider_soperator.slurm.requests import Request
from airflow_provider_soperator.transports.local import SHELL, LocalTransport
from airflow_provider_soperator.transports.pyslurm_calls import call_for
from airflow_provider_soperator.transports.pyslurm_process import PYTHON, Pyslurm

T = TypeVar("T")


class NativeTransport:
    """Asks pyslurm in a process of its own, and shells of this machine.

    ``python`` and ``shell`` are what starts the one and the other; a container or another root can be entered with it.
    """

    def __init__(self, python: tuple[str, ...] = PYTHON, shell: tuple[str, ...] = SHELL) -> None:
        self._pyslurm = Pyslurm(python)
        self._commands = LocalTransport(shell)

    async def ask(self, request: Request[T]) -> T:
        call = call_for(request)
        return await self._pyslurm.call(call) if call else await self._commands.ask(request)

    async def close(self) -> None:
        try:
            await self._pyslurm.close()
        finally:
            await self._commands.close()
