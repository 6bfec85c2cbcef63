"""All nodes of a large cluster: what one look at them costs the one who looks, beside sinfo's."""

from __future__ import annotations

import time

from airflow_provider_soperator.slurm.requests import CommandOutput, ListNodes
from benchmarks.table import Row
from sandbox.lifecycle import Sandbox
from sandbox.settings import Settings

NODES = 10_000
#: Of each, as one figure of a shared machine says little.
LOOKS = 5
#: Seconds of CPU for all nodes.
MOST = 0.3


def run() -> list[Row]:
    powered_down = f"NodeName=cloud-[0-{NODES - 1}] CPUs=128 RealMemory=1600000 State=CLOUD"
    # Soperator has room for 1024.
    conf = [powered_down, f"MaxNodeCount={2 * NODES}"]
    sandbox = Sandbox(Settings(name="bench-nodes", workers=1, static=0, slurm_conf=conf))
    sandbox.up()
    try:
        words, environment = ListNodes().command().argv, ListNodes().command().environment
        settings = " ".join(f"{name}={value}" for name, value in environment.items())
        told = [_timed(sandbox, f"{settings} {' '.join(words)}") for _ in range(LOOKS)]
        sinfo = min(_timed(sandbox, "sinfo --Node --all --exact --format='%N %T'")[0] for _ in range(2))
    finally:
        sandbox.down()
    asking, reading = min(seconds for seconds, _ in told), min(_reading(text) for _, text in told)
    return [
        Row(
            "nodes",
            f"processor time of a look at {NODES:,} nodes: scontrol, and reading its answer",
            f"{asking:.2f} + {reading:.2f} s",
            f"{MOST} s; sinfo --Node alone takes {sinfo:.2f} s",
            asking + reading <= MOST,
        )
    ]


def _timed(sandbox: Sandbox, line: str) -> tuple[float, str]:
    """Seconds of CPU that a command has taken, and what it has printed."""
    said = sandbox.init.run("sshd", ["bash", "-c", f"TIMEFORMAT='%U %S'; time {line}"], timeout=300)
    assert said.returncode == 0, said.stderr
    return sum(map(float, said.stderr.split()[-2:])), said.stdout


def _reading(text: str) -> float:
    printed = CommandOutput(0, text.encode())
    began = time.process_time()
    found = ListNodes().read(printed)
    # Beside those of the sandbox itself.
    assert sum(node.name.startswith("cloud-") for node in found) == NODES, f"{len(found)} nodes"
    return time.process_time() - began
