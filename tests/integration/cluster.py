"""What integration tests do to a sandbox: run commands in it, read its nodes and jobs, wait for what must come."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from sandbox.lifecycle import Sandbox

T = TypeVar("T")

LOGIN = "sshd"


class Cluster:
    """A running sandbox under test."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.settings = sandbox.settings
        self.paths = sandbox.paths
        self.access: dict[str, Any] = json.loads(sandbox.paths.access.read_text())

    # Commands

    def try_run(self, *argv: str, pod: str = LOGIN) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the login node, or in the Pod of another daemon."""
        return self.sandbox.init.run(pod, list(argv))

    def run(self, *argv: str, pod: str = LOGIN) -> str:
        said = self.try_run(*argv, pod=pod)
        assert said.returncode == 0, f"{argv}: {said.stdout}{said.stderr}"
        return said.stdout

    def sbatch(self, *options: str, wrap: str = "true") -> str:
        """Submit a job and return its id."""
        return self.run("sbatch", "--parsable", "--output=/root/%j.out", *options, f"--wrap={wrap}").strip()

    # State

    def node(self, name: str) -> NodeInfo:
        return NodeInfo(json.loads(self.run("scontrol", "show", "node", name, "--json"))["nodes"][0])

    def job_state(self, job: str) -> str:
        """From the queue, which keeps finished jobs for a while."""
        shown = json.loads(self.run("scontrol", "show", "job", job, "--json"))["jobs"][0]["job_state"]
        return "+".join(shown)

    def ledger(self) -> list[dict[str, Any]]:
        """Every claim and release of GPUs since the sandbox came up."""
        return [json.loads(line) for line in self.paths.ledger.read_text().splitlines()]

    def usage(self) -> int:
        return int(self.ledger()[-1]["usage"])

    # Waiting

    def wait(self, what: str, condition: Callable[[], T], timeout: float = 60) -> T:
        """Wait until a condition is true and return what it gave; fail in words if it never is."""
        deadline = time.monotonic() + timeout
        while not (outcome := condition()):
            assert time.monotonic() < deadline, f"after {timeout} s still not: {what}\n{self.run('sinfo', '-N', '-R')}"
            time.sleep(0.1)
        return outcome

    def wait_node(
        self, name: str, *, has: Iterable[str] = (), lacks: Iterable[str] = (), timeout: float = 60
    ) -> NodeInfo:
        """Wait until a node's state has and lacks these flags."""
        has, lacks = set(has), set(lacks)

        def reached() -> NodeInfo | None:
            node = self.node(name)
            return node if has <= node.state and not lacks & node.state else None

        return self.wait(f"{name} has {has or 'anything'} and lacks {lacks or 'nothing'}", reached, timeout)

    def wait_job(self, job: str, state: str, timeout: float = 60) -> None:
        self.wait(f"job {job} is {state}", lambda: self.job_state(job) == state, timeout)

    def power_up(self, name: str) -> NodeInfo:
        """Bring a node up from wherever it is, and wait until jobs could run on it."""
        self.wait_node(name, lacks={"POWERING_DOWN", "POWER_DOWN"})
        if "POWERED_DOWN" in self.node(name).state:
            self.run("scontrol", "power", "up", name)
        return self.wait_node(name, has={"IDLE"}, lacks=NOT_UP)

    def power_down(self, name: str) -> NodeInfo:
        """Bring a node down from wherever it is, and wait until its machine has left the block as well."""
        if "POWERED_DOWN" not in self.node(name).state:
            self.run("scontrol", "power", "down", name)
        return self.wait_node(name, has={"POWERED_DOWN"}, lacks={"POWERING_DOWN"})

    def reset(self) -> None:
        """Leave the sandbox as a test expects to find it: no faults, no jobs, no drains, only worker-0 on."""
        for partition in ("main", "hidden"):
            self.run("scancel", "--full", f"--partition={partition}")
        self.wait("no job is left", lambda: not self.run("squeue", "--noheader", "--all", "--states=PD,CF,R,CG"))
        for line in self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t").splitlines():
            name, state = line.split()
            if "drain" in state or "drng" in state:
                self.run("scontrol", "update", f"nodename={name}", "state=undrain")
        for ordinal in range(1, self.settings.workers):
            self.power_down(f"worker-{ordinal}")
        self.power_up("worker-0")
        self.wait("only worker-0 holds GPUs", lambda: self.usage() == self.settings.gpus)


class NodeInfo:
    """One node as `scontrol show node --json` has it."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.state: set[str] = set(shown["state"])
        self.reason: str = shown["reason"]
        self.comment: str = shown["comment"]
        self.instance_id: str = shown["instance_id"]


#: Flags of a node that no job can start on.
NOT_UP = {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "DOWN", "DRAIN", "NOT_RESPONDING"}
