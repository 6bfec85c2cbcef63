"""Slurm's lists of nodes, ``worker-[0-3,5],worker-cpu-18``: expanded, folded and compared by ClusterShell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from airflow_provider_soperator.values import is_template, listed

#: Twice the nodes that any Slurm has; a mistyped range must not fill the memory.
MOST_NODES = 1 << 17

#: What is said of nodes that are not those of the task: to jobs the word means their number.
_OF_JOBS = "(nodes=None keeps those of default_args out)"

_RANGES = r"\[[0-9]+(?:-[0-9]+)?(?:,[0-9]+(?:-[0-9]+)?)*\]"
_NAME = rf"(?:[A-Za-z0-9_.]|{_RANGES})(?:[A-Za-z0-9_.-]|{_RANGES})*"
_RANGE = re.compile(r"(?<=[\[,])([0-9]+)-([0-9]+)(?=[\],])")
#: A pair of brackets, and whether another one follows in the same name.
_BRACKETS = re.compile(r"(\[[^]]*\])[^[,]*(?=(\[?))")
_HOSTLIST = re.compile(rf"{_NAME}(?:,{_NAME})*")


class HostlistError(ValueError):
    """An invalid list of nodes; the message names the faulty part."""


def expand(hostlist: str) -> list[str]:
    """All names in a list of nodes, each once, in the order of their numbers.

    >>> expand("worker-[0-1,3],worker-cpu-18")
    ['worker-0', 'worker-1', 'worker-3', 'worker-cpu-18']
    """
    return list(_parse(hostlist))


def fold(names: str | Iterable[str]) -> str:
    """The shortest list for these names with at most one pair of brackets each.

    Slurm reads several pairs, but Soperator's power manager does not.

    >>> fold(["gb-rack2-0", "gb-rack1-1", "gb-rack1-0"])
    'gb-rack1-[0-1],gb-rack2-0'
    """
    return str(_parse(names))


def intersect(one: str | Iterable[str], other: str | Iterable[str]) -> list[str]:
    """The names that are in both lists, in the order of their numbers.

    >>> intersect("worker-[0-5]", ["worker-5", "worker-6"])
    ['worker-5']
    """
    return list(_parse(one) & _parse(other))


def _parse(given: str | Iterable[str]) -> Any:
    # Imported late: parsing a DAG file needs no hostlist.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    pieces = listed(given)
    if pieces == [""]:
        pieces = []
    if sum(map(_checked, pieces)) > MOST_NODES:
        raise _too_many(",".join(pieces))
    try:
        # Many single names at once are far faster than one long list.
        nodes = NodeSet.fromlist(pieces, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise HostlistError(f"{_shortened(','.join(pieces))} is not a list of nodes: {error}") from None
    nodes.fold_axis = [-1]
    return nodes


def check(hostlist: str) -> None:
    """Raise ``HostlistError`` for what is no list of nodes; without ClusterShell, whose import takes a while."""
    if _checked(hostlist) > MOST_NODES:
        raise _too_many(hostlist)


def _checked(hostlist: str) -> int:
    """How many names the brackets of a list stand for, before ClusterShell expands them; other names have no limit."""
    if hostlist.lower() == "all":
        raise HostlistError(f"{hostlist!r} means every node to Slurm: name the nodes instead")
    # ClusterShell also reads operators, groups and blanks: only lists that Slurm itself would accept may reach it.
    if not _HOSTLIST.fullmatch(hostlist):
        shown = _shortened(hostlist)
        raise HostlistError(f"{shown} is not a list of nodes (such as worker-0 or worker-[0-3,5]): {_where(hostlist)}")
    for first, last in _RANGE.findall(hostlist) if "[" in hostlist else ():
        if int(last) < int(first):
            raise HostlistError(f"{_shortened(hostlist)} is not a list of nodes: {first}-{last} goes backwards")
    number, of_name = 0, 1
    for ranges, goes_on in _BRACKETS.findall(hostlist):
        of_name *= 1 + ranges.count(",") + sum(int(last) - int(first) for first, last in _RANGE.findall(ranges))
        if not goes_on:
            number, of_name = number + of_name, 1
    return number


def _too_many(hostlist: str) -> HostlistError:
    return HostlistError(f"{_shortened(hostlist)} names more than {MOST_NODES} nodes: check its ranges")


def _shortened(hostlist: str) -> str:
    return repr(hostlist if len(hostlist) <= 80 else f"{hostlist[:77]}...")


def _where(hostlist: str) -> str:
    good = re.match(rf"(?:{_NAME},)*", hostlist)
    rest = hostlist[good.end() if good else 0 :]
    wrong = re.split(r",(?![^\[]*\])", rest, maxsplit=1)[0]
    return f"see {_shortened(wrong)}" if wrong else "a name is missing beside a comma"


def check_nodes(nodes: object) -> None:
    """Raise ``ValueError``, when the DAG is parsed, for what can never be a list of nodes."""
    if nodes is None or is_template(nodes):
        return
    said = [nodes] if isinstance(nodes, str) else nodes
    if not isinstance(said, Sequence) or not all(isinstance(one, str) for one in said):
        raise ValueError(f"nodes must name nodes, such as worker-[0-3], got {nodes!r} {_OF_JOBS}")
    if not any(map(is_template, said)):
        names_of(said)


def names_of(nodes: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names, each once; ``ValueError`` if there is none, or if they cannot be read."""
    if nodes is None:
        return ()
    said = listed(nodes)
    names = tuple(_parse([one.strip() for one in said if one.strip()]))
    if not names:
        raise ValueError("nodes names no node")
    return names


def check_nodes_or_count(nodes: object, count: object) -> None:
    """Raise ``ValueError``, when the DAG is parsed, unless either the nodes are named or their number is said."""
    check_nodes(nodes)
    if (nodes is None) == (count is None):
        raise ValueError(f"name the nodes or their number: nodes or count, and not both {_OF_JOBS}")
    if count is not None:
        check_count(count)


def check_count(count: object) -> None:
    """Raise ``ValueError``, when the DAG is parsed, for what can never be a number of nodes."""
    if not is_template(count) and (isinstance(count, bool) or not str(count).isdecimal() or int(str(count)) < 1):
        raise ValueError(f"count must be a number of nodes, got {count!r}")
