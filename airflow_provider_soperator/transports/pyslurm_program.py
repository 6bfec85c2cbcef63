"""Program that answers calls with pyslurm, over standard input and output; ``native`` runs it as a process.

A process of its own, for two reasons. libslurm ends the process that it is loaded into if it finds no configuration or
cannot read it. And pyslurm keeps Python's lock while it waits for slurmctld: if that hangs, every thread and every
event loop stands still with it until MessageTimeout (Soperator: 60 s), heartbeats included.

The Python that runs it may have pyslurm and not the provider, so nothing of the provider is imported here.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

#: Begins each answer: all other output is libslurm's log.
MARK = "\x1e"


def trouble() -> str:
    """The reason why pyslurm cannot be used here, or empty. libslurm may end the process instead."""
    configuration = os.environ.get("SLURM_CONF")
    if configuration and not os.path.exists(configuration):
        # libslurm would wait a minute for it to appear.
        return f"SLURM_CONF names {configuration}, which does not exist"
    # Else the import itself reads the configuration, before the versions can be compared.
    os.environ["PYSLURM_DISABLE_AUTO_INIT"] = "1"
    try:
        import pyslurm
    except ImportError as error:
        return str(error)
    year, month, _ = pyslurm.slurm_api_version()
    if not pyslurm.__version__.startswith(f"{year}.{month:02}."):
        return f"pyslurm {pyslurm.__version__} does not match libslurm of Slurm {year}.{month:02}"
    pyslurm.slurm_init()
    return ""


def partitions() -> list[dict[str, Any]]:
    import pyslurm

    return [
        {
            "name": one.name,
            "state": one.state,
            "is_default": one.is_default,
            "is_hidden": one.is_hidden,
            "nodelist": one.nodes or "",
        }
        for one in pyslurm.Partitions.load().values()
    ]


def update_nodes(names: str, **changes: str) -> None:
    import pyslurm

    pyslurm.Node(names).modify(pyslurm.Node(**changes))


CALLS: dict[str, Callable[..., Any]] = {"partitions": partitions, "update_nodes": update_nodes}


def answer(function: str, arguments: dict[str, str]) -> dict[str, Any]:
    import pyslurm

    try:
        return {"answer": CALLS[function](**arguments)}
    except pyslurm.PyslurmError as error:
        return {"refused": str(error)}


def main() -> None:
    def say(words: dict[str, Any]) -> None:
        print(f"{MARK}{json.dumps(words)}", flush=True)

    say({"trouble": trouble()})
    for line in sys.stdin:
        say(answer(*json.loads(line)))


if __name__ == "__main__":
    main()
