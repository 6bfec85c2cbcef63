"""What all ways to make a cluster have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from airflow_provider_soperator.provisioning.connections import Reached
from airflow_provider_soperator.provisioning.planned import Planned


class Provisioner(AbstractContextManager["Provisioner"], ABC):
    """One cluster, by one way. Nothing changes before ``apply``; the end of the context leaves no plan behind."""

    #: The task that makes it.
    owner = ""

    @abstractmethod
    def plan(self, *, destroy: bool = False) -> Planned:
        """What is to be done; it is told in the log, too."""

    @abstractmethod
    def guard(self, allowed: Sequence[str]) -> None:
        """Refuse a plan by which something ends that is not ``allowed`` to."""

    @abstractmethod
    def apply(self) -> str:
        """Carry out the plan; what was done, in a few words."""

    @abstractmethod
    def interrupt(self) -> str:
        """The task is told to end: have the work end in good order, and say how it is left. For signal handlers."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def reached(self) -> Reached:
        """How the cluster that was made is reached, as far as that is known by this way."""
        return Reached()

    def is_begun_by(self, owner: str) -> bool:
        """Whether an earlier try of a task has begun to make, or to destroy, the cluster."""
        return False

    def begin(self, owner: str) -> None:
        """Take note that a task begins, where its next try finds it."""
        self.owner = owner
