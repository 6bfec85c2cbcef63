"""What is to be ordered now to have nodes drained, or to undo that, in the terms of ``slurm.power``."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_soperator.slurm.nodes import DrainReason, is_busy, is_ours
from airflow_provider_soperator.slurm.power import THERE, Move, Step, because, move_each
from airflow_provider_soperator.slurm.records import Node
from airflow_provider_soperator.slurm.requests import Drain, Undrain
from airflow_provider_soperator.slurm.states import NodeFlag


def drained(nodes: Iterable[Node], reason: DrainReason | str, *, wait_for_jobs: bool = False) -> Move:
    """No new job is to start on nodes. One that somebody else has drained keeps that reason."""
    return move_each(nodes, lambda node: _drained(node, reason, wait_for_jobs))


def undrained(nodes: Iterable[Node], *, owner: str = "", force: bool = False) -> Move:
    """Jobs may start on nodes, as far as drains are concerned; those of others are undone by ``force`` only."""
    return move_each(nodes, lambda node: _undrained(node, owner, force))


def _drained(node: Node, reason: DrainReason | str, wait_for_jobs: bool) -> Step:
    if not node.state.has(NodeFlag.DRAIN):
        return Step((Drain((node.name,), str(reason)),), waits="is being drained")
    if node.state.has(NodeFlag.POWER_DOWN):
        return Step(waits="has been told to power down, which ends its drain, and is drained after that")
    if wait_for_jobs and is_busy(node):
        return Step(waits="has jobs")
    return THERE


def _undrained(node: Node, owner: str, force: bool) -> Step:
    if not node.state.has(NodeFlag.DRAIN):
        return THERE
    if not force and not is_ours(node, owner):
        return Step(lost=because(node, "is drained"))
    return Step((Undrain((node.name,)),), waits="is being undrained")
