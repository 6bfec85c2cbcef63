"""Nodes and their number as operators are given them: as lists, as Slurm writes them, or as templates."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_soperator.values import is_template


def check_nodes(nodes: object) -> None:
    """Raise ``ValueError``, when the DAG is parsed, for what can never be a list of nodes."""
    if nodes is None or is_template(nodes):
        return
    said = [nodes] if isinstance(nodes, str) else nodes
    if not isinstance(said, Sequence) or not all(isinstance(one, str) for one in said):
        raise ValueError(f"nodes must name nodes, such as worker-[0-3], got {nodes!r}")
    if not any(map(is_template, said)):
        names_of(said)


def names_of(nodes: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names, each once; ``ValueError`` if there is none, or if they cannot be read."""
    from airflow_provider_soperator.slurm import hostlist

    if nodes is None:
        return ()
    said = [nodes] if isinstance(nodes, str) else list(nodes)
    names = tuple(hostlist.expand(hostlist.fold([one.strip() for one in said if one.strip()])))
    if not names:
        raise ValueError("nodes names no node")
    return names


def check_count(count: object) -> None:
    """Raise ``ValueError``, when the DAG is parsed, for what can never be a number of nodes."""
    if not is_template(count) and (isinstance(count, bool) or not str(count).isdecimal() or int(str(count)) < 1):
        raise ValueError(f"count must be a number of nodes, got {count!r}")
