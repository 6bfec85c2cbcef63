"""What integration tests do to a sandbox: run commands in it, read its nodes and jobs, wait for what must come."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import kubernetes.client
import kubernetes.config
from kubernetes.client.exceptions import ApiException
from nebius.aio.operation import Operation
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.mk8s.v1 import (
    GetNodeGroupRequest,
    NodeGroupServiceClient,
    NodeGroupSpec,
    NodeGroupStatus,
    UpdateNodeGroupRequest,
)
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from sandbox import faults
from sandbox.cloud.landscape import INFERENCE_GROUP, INFERENCE_NAMESPACE
from sandbox.lifecycle import Sandbox
from sandbox.settings import EPHEMERAL_SET, NAMESPACE
from tests import leftovers
from tests.leftovers import Leftovers
from tests.patience import PATIENCE

T = TypeVar("T")

LOGIN = "sshd"
#: Seconds that a command may take on a busy machine.
ANSWERS = 300.0
#: Where the Kubernetes API has NodeSets and their power states.
SOPERATOR = ("slurm.nebius.ai", "v1alpha1", NAMESPACE)


def until(file: str) -> str:
    """Words with which a bash waits for a file. They begin no process: a `sleep` for each look of each job adds up."""
    return f"exec 9<> <(:); until test -e {file}; do read -rt 0.3 -u 9 || :; done"


class Cluster:
    """A running sandbox under test."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.settings = sandbox.settings
        self.paths = sandbox.paths
        self.access: dict[str, Any] = json.loads(sandbox.paths.access.read_text())
        #: Jobs that were submitted through this, which need not have ended when a test does.
        self.jobs: set[str] = set()
        #: Nodes that were drained through this.
        self.drained: set[str] = set()
        #: Whether a fault was brought about.
        self.is_broken = False

    # Commands

    def try_run(self, *argv: str, pod: str = LOGIN) -> subprocess.CompletedProcess[str]:
        """Run a command as root on the login node, or in the Pod of another daemon."""
        return self.sandbox.init.run(pod, list(argv), timeout=ANSWERS)

    def run(self, *argv: str, pod: str = LOGIN) -> str:
        said = self.try_run(*argv, pod=pod)
        assert said.returncode == 0, f"{argv}: {said.stdout}{said.stderr}"
        return said.stdout

    def sbatch(self, *options: str, wrap: str = "true") -> str:
        """Submit a job and return its id."""
        job = self.run("sbatch", "--parsable", "--output=/root/%j.out", *options, f"--wrap={wrap}").strip()
        self.jobs.add(job)
        return job

    def held_job(self, *options: str) -> str:
        """Submit a job that runs until ``let_go``, and return its id."""
        return self.sbatch(*options, wrap=f"exec bash -c '{until('/root/go-$SLURM_JOB_ID')}'")

    def let_go(self, job: str) -> None:
        self.run("touch", f"/root/go-{job}")

    def start_soon(self, job: str) -> None:
        """Let a requeued job start before its time: Slurm holds it back for two minutes.

        Not at once: it fails where its first run still clears up after itself.
        """
        done = self.try_run("scontrol", "update", f"jobid={job}", "starttime=now+3")
        # On a busy machine the two minutes may be over by now.
        assert done.returncode == 0 or {"RUNNING", "COMPLETED"} & {*self.job_state(job).split("+")}, done.stderr

    def kubectl(self, *argv: str) -> str:
        said = subprocess.run(
            ["kubectl", *argv],
            env={**os.environ, "KUBECONFIG": str(self.paths.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert said.returncode == 0, f"kubectl {argv}: {said.stdout}{said.stderr}"
        return said.stdout

    def replace_pod(self, name: str) -> None:
        """Delete a worker's Pod, and wait until the one that its NodeSet makes in its place runs."""
        before = self.pod(name).metadata.uid
        self.kubernetes.delete_namespaced_pod(name, NAMESPACE)

        def replaced() -> bool:
            pod = self.pod(name)
            return pod is not None and pod.metadata.uid != before and is_ready(pod)

        self.wait(f"{name} has a new Pod that runs", replaced)

    @property
    def node_check(self) -> str:
        """A check that comes with this Soperator, and drains the nodes that fail it."""
        return "gpu-fryer" if self.settings.soperator == "4.1" else "gpu-checks"

    def set_active_nodes(self, ordinals: list[int]) -> None:
        """Change the power state behind the back of slurmctld and its power manager."""
        body = {"spec": {"activeNodes": ordinals}}
        self.custom_objects.patch_namespaced_custom_object(*SOPERATOR, "nodesetpowerstates", EPHEMERAL_SET, body)

    def fault(self, name: str, **options: Any) -> str:
        """Break something, as `python -m sandbox fault` does."""
        self.is_broken = True
        if name == "node-drain":
            self.drained.add(options["node"])
        if name == "slurmctld-down":
            self._wait_nodes_saved()
        return faults.bring(self.sandbox, name, argparse.Namespace(**options))

    def _wait_nodes_saved(self) -> None:
        """Wait until slurmctld, which writes nodes down some seconds after they change, has done so.

        One that was killed before took nodes that are on for off when it was back, and they do not register again.
        """
        comment = self.node("worker-0").comment
        self.wait_saved("node", lambda: self.run("scontrol", "update", "nodename=worker-0", f"comment={comment}"))

    def wait_saved(self, what: str, change: Callable[[], object]) -> None:
        """Wait until slurmctld has written down its ``job`` or ``node`` states, after a change that it has to write."""
        saved, since = self.sandbox.init.root() / f"var/spool/slurmctld/{what}_state", time.time()
        # Else there may be nothing more to write: it may just have done so.
        change()
        self.wait(f"slurmctld has saved each {what}", lambda: saved.exists() and saved.stat().st_mtime > since)

    def resize(self, group: str, count: int) -> Operation[Any]:
        """Ask the Nebius API for a node group of so many machines."""
        request = UpdateNodeGroupRequest(
            metadata=ResourceMetadata(id=group), spec=NodeGroupSpec(fixed_node_count=count)
        )
        # A count of zero is only taken for one if the mask names it.
        mask = [("X-ResetMask", "spec.fixed_node_count")]
        return NodeGroupServiceClient(self.nebius).update(request, metadata=mask).wait()

    @contextmanager
    def inference(self, replicas: int) -> Iterator[None]:
        """The inference service with some replicas for a while; at the end its node group is empty, too."""
        scale = ("scale", "deployment/vllm", f"--namespace={INFERENCE_NAMESPACE}")
        self.kubectl(*scale, f"--replicas={replicas}")
        try:
            yield
        finally:
            self.kubectl(*scale, "--replicas=0")
            self.resize(INFERENCE_GROUP, 0).sync_wait(interval=0.1, timeout=PATIENCE)

    # State

    def group(self, group: str) -> NodeGroupStatus:
        """A node group as the Nebius API has it."""
        return NodeGroupServiceClient(self.nebius).get(GetNodeGroupRequest(id=group)).wait().status

    def replicas_on(self) -> list[Any]:
        """The machine that each Pod of the inference service is on; None for one that waits."""
        pods = self.kubernetes.list_namespaced_pod(INFERENCE_NAMESPACE, label_selector="app=vllm").items
        return [pod.spec.node_name for pod in pods]

    def node(self, name: str) -> NodeInfo:
        return NodeInfo(json.loads(self.run("scontrol", "show", "node", name, "--json"))["nodes"][0])

    def nodes(self) -> dict[str, NodeInfo]:
        """All nodes by their names."""
        shown = json.loads(self.run("scontrol", "show", "nodes", "--json"))["nodes"]
        return {node["name"]: NodeInfo(node) for node in shown}

    def active_jobs(self) -> list[str]:
        """The ids of all jobs that have not ended."""
        return self.run("squeue", "--noheader", "--all", "--states=PD,CF,R,CG", "--format=%i").split()

    def job(self, job: str) -> dict[str, Any]:
        """From the queue, which keeps finished jobs for a while."""
        shown: dict[str, Any] = json.loads(self.run("scontrol", "show", "job", job, "--json"))["jobs"][0]
        return shown

    def job_state(self, job: str) -> str:
        return "+".join(self.job(job)["job_state"])

    def pod(self, name: str) -> Any:
        """A worker's Pod; None if there is none."""
        try:
            return self.kubernetes.read_namespaced_pod(name, NAMESPACE)
        except ApiException as error:
            if error.status != 404:
                raise
            return None

    def machine_of(self, name: str) -> str | None:
        """The machine that a worker's Pod is on; None while it has none."""
        pod = self.pod(name)
        return pod.spec.node_name if pod else None

    def events(self, name: str) -> str:
        """All that Kubernetes has to say of a worker's present Pod."""
        pod = self.pod(name)
        events = self.kubernetes.list_namespaced_event(NAMESPACE).items
        return "\n".join(event.message for event in events if pod and event.involved_object.uid == pod.metadata.uid)

    def active_nodes(self) -> list[int]:
        """The ordinals of the ephemeral workers that should be on, as the power manager has written them down."""
        active: list[int] = self.custom("nodesetpowerstates", EPHEMERAL_SET)["spec"]["activeNodes"]
        return active

    def custom(self, plural: str, name: str) -> dict[str, Any]:
        """One of Soperator's own objects."""
        found: dict[str, Any] = self.custom_objects.get_namespaced_custom_object(*SOPERATOR, plural, name)
        return found

    def list_custom(self, plural: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.custom_objects.list_namespaced_custom_object(*SOPERATOR, plural)["items"]
        return found

    @cached_property
    def kubernetes(self) -> Any:
        return kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(self.paths.kubeconfig)))  # type: ignore[no-untyped-call]

    @cached_property
    def nebius(self) -> SDK:
        access = self.access["nebius"]
        return SDK(
            resolver=Constant(access["endpoint"]),
            options=[("nebius.insecure", access["insecure"])],
            credentials=access["token"],
            user_agent_prefix="integration-tests/0",
        )

    def close(self) -> None:
        """Let go of the connections that were opened on the way."""
        if "nebius" in vars(self):
            self.nebius.sync_close()
        if "kubernetes" in vars(self):
            self.kubernetes.api_client.close()

    @cached_property
    def custom_objects(self) -> Any:
        return kubernetes.client.CustomObjectsApi(self.kubernetes.api_client)

    def ledger(self) -> list[dict[str, Any]]:
        """Every claim and release of GPUs since the sandbox came up."""
        return [json.loads(line) for line in self.paths.ledger.read_text().splitlines()]

    def ledger_of(self, machine: str | None) -> list[dict[str, Any]]:
        """What the ledger says of one machine: a claim, and later a release."""
        return [entry for entry in self.ledger() if entry["holder"] == machine]

    def usage(self) -> int:
        return int(self.ledger()[-1]["usage"])

    # Waiting

    def wait(self, what: str, condition: Callable[[], T | None], timeout: float = PATIENCE) -> T:
        """Wait until a condition is true and return what it gave; fail in words if it never is."""
        began = time.monotonic()
        while not (outcome := condition()):
            waited = time.monotonic() - began
            assert waited < timeout, f"after {timeout} s still not: {what}\n{self._seen()}"
            # Most looks run a command, and other tests want the machine, too: who has waited for long looks less often.
            time.sleep(min(max(0.15, waited / 6), 1))
        return outcome

    def _seen(self) -> str:
        """Nodes and jobs, for whoever reads why a test failed."""
        # What is shown of a state in short hides flags.
        nodes = ["sinfo", "--Node", "--Format=NodeHost:20,StateComplete:60,Reason"]
        shown = [self.try_run(*words) for words in (nodes, ["squeue", "--all", "--long"])]
        return "\n".join(said.stdout + said.stderr for said in shown)

    def wait_node(
        self, name: str, *, has: Iterable[str] = (), lacks: Iterable[str] = (), timeout: float = PATIENCE
    ) -> NodeInfo:
        """Wait until a node's state has and lacks these flags."""
        has, lacks = set(has), set(lacks)

        def reached() -> NodeInfo | None:
            node = self.node(name)
            return node if has <= node.state and not lacks & node.state else None

        return self.wait(f"{name} has {has or 'anything'} and lacks {lacks or 'nothing'}", reached, timeout)

    def wait_job(self, job: str, state: str, timeout: float = PATIENCE) -> None:
        self.wait(f"job {job} is {state}", lambda: self.job_state(job) == state, timeout)

    def power_up(self, name: str) -> NodeInfo:
        """Bring a node up from wherever it is, and wait until jobs could run on it."""
        self.wait_node(name, lacks={"POWERING_DOWN", "POWER_DOWN"})
        if "POWERED_DOWN" in self.node(name).state:
            self.run("scontrol", "power", "up", name)
        return self.wait_node(name, has={"IDLE"}, lacks=NOT_UP)

    def give_up_boot(self, *names: str) -> None:
        """Have slurmctld give up these nodes, which do not boot, and all others that have booted for 5 s.

        It does so by itself after ResumeTimeout: minutes, so that a busy machine, too, boots those that shall come up.
        """
        for name in names:
            self.wait_node(name, has={"POWERING_UP"})
        with self.configured("resume_timeout", 5):
            # What is DOWN then may be powered down at once by others.
            for name in names:
                self.wait_node(name, lacks={"POWERING_UP"})

    @contextmanager
    def configured(self, setting: str, seconds: int) -> Iterator[None]:
        """A slurmctld that for a while waits longer, or less long: with another ``suspend_timeout``, for example."""
        try:
            self._reconfigure(setting, seconds)
            yield
        finally:
            self._reconfigure(setting, getattr(self.settings, setting))

    @contextmanager
    def lasting_power_down(self, name: str) -> Iterator[None]:
        """What powers a node down, and looks at it as it does: in this sandbox that is over in a second or two."""
        with self.configured("suspend_timeout", PATIENCE):
            yield
            # A slurmctld that reads its configuration may end the program that takes the node's Pod away. Where the
            # test has failed before, the node may not go at all.
            self.wait_gone(name)

    def _reconfigure(self, setting: str, seconds: int) -> None:
        self._configure(setting, seconds)
        # On a busy machine slurmctld may not answer within MessageTimeout; to ask again does no harm.
        self.wait(
            "slurmctld reads its configuration again", lambda: self.try_run("scontrol", "reconfigure").returncode == 0
        )

    @contextmanager
    def commands_wait(self, seconds: int) -> Iterator[None]:
        """Commands that begin meanwhile wait so long for a daemon that does not answer: they read that each time.

        Slurm warns of more than 100.
        """
        self._configure("message_timeout", seconds)
        try:
            yield
        finally:
            self._configure("message_timeout", self.settings.message_timeout)

    def _configure(self, setting: str, seconds: int) -> None:
        name = setting.title().replace("_", "")
        self.run("sh", "-c", f"sed -i s/^{name}=.*/{name}={seconds}/ /etc/slurm/slurm*.conf*")

    def power_down(self, *names: str) -> None:
        """Bring nodes down at once, from wherever they are; their machines follow in their own time."""
        if not names:
            return
        self.run("scontrol", "power", "down", "force", ",".join(names))
        for name in names:
            # On a busy machine all of SuspendTimeout may lie between two looks.
            state = self.wait(f"{name} powers down", lambda name=name: self._powering_down(name))
            if state != OFF:
                # Else the node would stay so for all of SuspendTimeout.
                self._resume(name)
        for name in names:
            self.wait_gone(name)
            self.wait(f"{name} is off", lambda name=name: self._is_off(name))

    def _is_off(self, name: str) -> bool:
        """Whether a node is off, for which it may have to be told once more.

        Where slurmd has died before, a ping of slurmctld's that was under way fails later, and makes the node DOWN, or
        one that does not respond though it is off, which no job can power up.
        """
        state = self.node(name).state
        if "DOWN" in state:
            self._resume(name)
        else:
            self._order_down_again(name, state)
        return state == OFF

    def _resume(self, name: str) -> None:
        """Have a node that goes down be off at once; slurmctld refuses that if it is by now."""
        done = self.try_run("scontrol", "update", f"nodename={name}", "state=resume")
        assert done.returncode == 0 or self.node(name).state == OFF, done.stderr

    def _order_down_again(self, name: str, state: set[str]) -> None:
        is_on = not state & {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"}
        if is_on or (state >= {"POWERED_DOWN", "NOT_RESPONDING"} and "POWER_DOWN" not in state):
            self.run("scontrol", "power", "down", "force", name)

    def _powering_down(self, name: str) -> set[str] | None:
        """The state of a node that is on its way down, or off; all of that may lie between two looks, as above."""
        state = self.node(name).state
        self._order_down_again(name, state)
        return state if "POWERING_DOWN" in state or state == OFF else None

    def wait_gone(self, name: str) -> None:
        """Wait until a worker's Pod is gone, its slurmd has ended and nothing is about to bring them back."""
        nodeset, _, ordinal = name.rpartition("-")

        def gone() -> bool:
            listed = nodeset == EPHEMERAL_SET and int(ordinal) in self.active_nodes()
            # One that has died with its machine is remembered, without a PID.
            runs = self.sandbox.init.processes().get(name, {}).get("pid")
            return not listed and self.pod(name) is None and not runs

        self.wait(f"{name} is gone", gone)

    def settle(self) -> None:
        """Wait until no machine is left that no node needs."""
        self.wait("only worker-0 holds GPUs", lambda: self.usage() == self.settings.gpus)

    def scale(self, nodeset: str, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        self.custom_objects.patch_namespaced_custom_object_scale(*SOPERATOR, "nodesets", nodeset, body)

    @contextmanager
    def scaled(self, nodeset: str, replicas: int) -> Iterator[None]:
        """A NodeSet with more or fewer replicas for a while."""
        before = self.custom("nodesets", nodeset)["spec"]["replicas"]
        self.scale(nodeset, replicas)
        try:
            yield
        finally:
            self.scale(nodeset, before)
            for ordinal in range(replicas, before):
                self.wait_known(f"{nodeset}-{ordinal}", known=True)
            for ordinal in range(before, replicas):
                self.wait_known(f"{nodeset}-{ordinal}", known=False)

    def wait_known(self, name: str, *, known: bool) -> None:
        """Wait until Slurm has, or has no longer, a node of this name."""

        def is_known() -> bool:
            return self.try_run("scontrol", "show", "node", name).returncode == 0

        self.wait(f"{name} is {'' if known else 'not '}in slurm.conf", lambda: is_known() == known)

    def reset(self) -> None:
        """Make the sandbox what a test expects to find: no jobs, no drains, no reservations, only worker-0 on."""
        self.restore(leftovers.look(self.sandbox))

    def restore(self, left: Leftovers) -> None:
        """The same, from what was found there."""
        self.remove(left)
        others = [f"worker-{ordinal}" for ordinal in range(1, self.settings.workers)]
        going = [name for name in others if left.states[name] != OFF]
        # What brings a node up could still be under way, and would bring it up after it has gone.
        self.wait(f"none of {going} boots", lambda: not any(self.node(name).boots for name in going))
        self.power_down(*going)
        if left.states["worker-0"] != {"IDLE", "CLOUD"}:
            self.power_up("worker-0")

    def remove(self, left: Leftovers) -> None:
        """Remove all that was found there, and leave the power of nodes as it is."""
        for name in left.reservations:
            self.run("scontrol", "delete", f"ReservationName={name}")
        if left.jobs:
            self.run("scancel", "--full", *left.jobs)
            self.wait("no job is left", lambda: not self.active_jobs())
        for name in left.drained:
            self.run("scontrol", "update", f"nodename={name}", "state=undrain")
        for name in left.marks:
            self.run("scontrol", "update", f"nodename={name}", "reason=", "comment=")
        if left.files:
            self.run("rm", "-rf", *left.files)


def check_ledger(entries: list[dict[str, Any]]) -> None:
    """Prove from claims and releases alone that the block never gave more than it had, and bought nothing unasked."""
    held: dict[str, int] = {}
    limit = entries[0]["limit"]
    for number, entry in enumerate(entries):
        kind, holder, gpus = entry["entry"], entry["holder"], entry["gpus"]
        assert number == 0 or entry["at"] >= entries[number - 1]["at"], f"time ran backwards: {entry}"
        if kind == "claim":
            assert holder not in held, f"claimed twice: {entry}"
            held[holder] = gpus
            assert sum(held.values()) <= limit, f"more than the block has: {entry}"
        elif kind == "release":
            assert held.pop(holder, None) == gpus, f"gave back what it did not have: {entry}"
        elif kind == "limit":
            limit = gpus
        elif kind == "refused":
            assert gpus > limit - sum(held.values()), f"refused what there was: {entry}"
        else:
            assert kind in {"declared", "barred"}, f"bought beside the block: {entry}"
        assert entry["usage"] == sum(held.values()), f"the block counts otherwise: {entry}"
        assert entry["limit"] == limit, f"the limit moved by itself: {entry}"


class NodeInfo:
    """One node as `scontrol show node --json` has it."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.state: set[str] = set(shown["state"])
        self.reason: str = shown["reason"]
        self.comment: str = shown["comment"]
        self.instance_id: str = shown["instance_id"]

    @property
    def boots(self) -> bool:
        """A node that has booted by itself may keep the mark of an order to power it up."""
        return "POWERING_UP" in self.state or {"POWER_UP", "POWERED_DOWN"} <= self.state


def is_ready(pod: Any) -> bool:
    """A Pod as the kubernetes client has it."""
    return any(entry.type == "Ready" and entry.status == "True" for entry in pod.status.conditions or [])


#: All of the state of a node that is off, and that a job can power up.
OFF = {"IDLE", "CLOUD", "POWERED_DOWN"}
#: Flags of a node that no job can start on.
NOT_UP = {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "DOWN", "DRAIN", "NOT_RESPONDING"}
