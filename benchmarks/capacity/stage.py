"""A sandbox all of whose nodes work, as seen and changed from outside: none of the provider's own code looks on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.mk8s.v1 import NodeGroupServiceClient, NodeGroupSpec, UpdateNodeGroupRequest
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from benchmarks.capacity.shape import GPUS, NODES, Job
from sandbox.control import request
from sandbox.lifecycle import Sandbox
from sandbox.settings import EPHEMERAL_SET, USER, Settings

ALL = f"{EPHEMERAL_SET}-[0-{NODES - 1}]"
#: Words of Slurm's for a node that is on its way, or has gone.
_GOING = {"powering_down", "powered_down"}
_SHUT = _GOING | {"drain", "power_down", "power_up", "powering_up", "down", "not_responding", "fail"}
_AT_WORK = {"allocated", "mixed", "completing"}


@dataclass(frozen=True)
class NodeSeen:
    """A node by the words that Slurm has for its state."""

    name: str
    words: frozenset[str]

    @property
    def is_going(self) -> bool:
        return bool(self.words & _GOING)

    @property
    def is_drained(self) -> bool:
        return "drain" in self.words

    @property
    def is_idle(self) -> bool:
        """It has nothing to do, and jobs may start on it."""
        return not self.words & (_SHUT | _AT_WORK)

    @property
    def is_usable(self) -> bool:
        """A job runs on it, whatever has been ordered meanwhile, or may start."""
        return self.is_idle or (bool(self.words & _AT_WORK) and not self.is_going)


@dataclass(frozen=True)
class Toll:
    """What accounting says of jobs that did not end by themselves."""

    jobs: int
    gpu_seconds: float


class Stage:
    """The sandbox on which one way is tried."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.access: dict[str, Any] = json.loads(sandbox.paths.access.read_text())
        nebius = self.access["nebius"]
        self._group = nebius["node_groups"]["inference"]
        self._nebius = SDK(
            resolver=Constant(nebius["endpoint"]),
            options=[("nebius.insecure", nebius["insecure"])],
            credentials=nebius["token"],
            user_agent_prefix="benchmarks/0",
        )

    def close(self) -> None:
        self._nebius.sync_close()

    # What there is

    def nodes(self) -> list[NodeSeen]:
        # Another set has nodes without GPUs in the same partition; in other partitions, the same nodes are once more.
        which = ("--Node", "--partition=main", f"--nodes={ALL}")
        said = self.slurm("sinfo", "--noheader", *which, "--Format=NodeList:20,StateComplete:200")
        rows = (line.split() for line in said.splitlines())
        return [NodeSeen(name, frozenset(state.split("+"))) for name, state in rows]

    def free(self) -> int:
        """GPUs of the block that nobody holds."""
        block = self._cloud()["block"]
        return int(block["limit"] - block["usage"])

    def ready(self) -> int:
        """Machines of the inference group that run."""
        [group] = [group for group in self._cloud()["groups"] if group["id"] == self._group]
        return int(group["machines"].get("running", 0))

    def ledger(self) -> set[str]:
        """What has come of all that the block was asked for."""
        return {json.loads(line)["entry"] for line in self._sandbox.paths.ledger.read_text().splitlines()}

    def waiting(self) -> int:
        """Jobs that could start anywhere."""
        return len(self.slurm("squeue", "--noheader", "--states=PENDING", "--format=%i").split())

    def toll(self) -> Toll:
        """Each run of a job counts, also of one that was put back into the queue."""
        said = self.slurm(
            *("sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2"),
            *("--starttime=now-1hours", "--format=State,ElapsedRaw"),
        )
        runs = [(state, float(seconds)) for state, _, seconds in (line.partition("|") for line in said.splitlines())]
        lost = [seconds for state, seconds in runs if state not in ("COMPLETED", "RUNNING", "PENDING")]
        return Toll(len(lost), sum(lost) * GPUS)

    # What can be done

    def submit(self, queue: Sequence[Job]) -> None:
        """Each job takes a node with all of its GPUs."""
        options = f"--nodes=1 --exclusive --gpus-per-node={GPUS} --output=/dev/null"
        lines = [f"sbatch --quiet {options} --time={job.limit} --wrap='sleep {job.seconds}'" for job in queue]
        said = self._sandbox.init.run("sshd", ["su", "-", USER, "-c", "\n".join(["set -e", *lines])], timeout=120)
        assert said.returncode == 0, said.stderr

    def resize(self, machines: int) -> None:
        """What a script or the console would do to give inference so many machines."""
        spec = NodeGroupSpec(fixed_node_count=machines)
        update = UpdateNodeGroupRequest(metadata=ResourceMetadata(id=self._group), spec=spec)
        # Nothing else of the spec is to be reset.
        mask = [("X-ResetMask", "spec.fixed_node_count")]
        NodeGroupServiceClient(self._nebius).update(update, metadata=mask).wait()

    def slurm(self, *words: str) -> str:
        said = self._sandbox.init.run("sshd", list(words))
        assert said.returncode == 0, said.stderr
        return said.stdout

    def _cloud(self) -> dict[str, Any]:
        described: dict[str, Any] = request(self._sandbox.paths.cloud_control, 5, do="describe")
        return described


@contextmanager
def stage(boot: float) -> Iterator[Stage]:
    """A new sandbox, whose block is all in the hands of Slurm."""
    # No node has to be waited for.
    conf = ["PrologSlurmctld=/bin/true"]
    size = Settings(name="bench-capacity", workers=NODES, initial=NODES, static=0)
    sandbox = Sandbox(replace(size, slurm_conf=conf, vm_boot=boot))
    try:
        sandbox.up()
        with closing(Stage(sandbox)) as here:
            yield here
    finally:
        sandbox.down()
