"""A small cluster behind the Kubernetes double, served from a thread of its own, and kubectl beside it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import shutil
import subprocess
import threading
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from sandbox.cloud.faults import ApiFault, ApiFaults
from sandbox.kube.execution import Stdio
from sandbox.kube.kubeconfig import write_kubeconfig
from sandbox.kube.objects import Object
from sandbox.kube.server import KubernetesDouble, serve
from sandbox.kube.store import ObjectStore
from tests.patience import PATIENCE

TOKEN = "sandbox-token"
VIEWER_TOKEN = "viewer-token"
NAMESPACE = "soperator"

#: What a NodeSet cannot be without.
NODE_SET_PARTS: Object = {
    "slurmd": {"image": {"repository": "slurmd"}, "resources": {}, "volumes": {"jail": {}, "spool": {}}},
    "munge": {"image": {"repository": "munge"}, "resources": {}},
}

R = TypeVar("R")


class LocalRunner:
    """Runs what is to run in a pod on this machine, and remembers the processes."""

    def __init__(self) -> None:
        self.processes: list[Process] = []

    async def spawn(self, pod: Object, container: str, argv: list[str], stdio: Stdio) -> Process:
        process = await asyncio.create_subprocess_exec(
            *argv,
            **stdio.options(),
            env={**os.environ, "POD": pod["metadata"]["name"], "CONTAINER": container},
        )
        self.processes.append(process)
        return process


async def three_lines(pod: Object, container: str, tail_lines: int | None) -> bytes:
    lines = [f"{container} {number}\n".encode() for number in (1, 2, 3)]
    return b"".join(lines if tail_lines is None else lines[len(lines) - tail_lines :])


def fill(store: ObjectStore) -> None:
    """Two nodes, a worker pod, and one of each kind that the provider meets."""

    def ready(type_: str) -> list[Object]:
        return [{"type": type_, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]

    def pod(name: str, phase: str, *containers: str) -> None:
        spec = {"nodeName": "gpu-a", "containers": [{"name": c, "image": "slurm"} for c in containers]}
        statuses = [
            {
                "name": c,
                "ready": True,
                "restartCount": 0,
                "state": {"running": {}},
                "image": "slurm",
                "imageID": "",
            }
            for c in containers
        ]
        labels = {"slurm.nebius.ai/nodeset": "worker"}
        status = {"phase": phase, "conditions": ready("Ready"), "containerStatuses": statuses}
        store.create("pod", {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}, NAMESPACE)

    store.create("namespace", {"metadata": {"name": NAMESPACE}})
    for name, zone in (("gpu-a", "a"), ("gpu-b", "b")):
        store.create(
            "node",
            {"metadata": {"name": name, "labels": {"zone": zone}}, "status": {"conditions": ready("Ready")}},
        )
    pod("worker-0", "Running", "slurmd")
    pod("login-0", "Running", "sshd", "munge")
    pod("finished", "Succeeded", "main")
    store.create(
        "event",
        {
            "metadata": {"name": "worker-0.started"},
            "involvedObject": {
                "kind": "Pod",
                "name": "worker-0",
                "namespace": NAMESPACE,
                "uid": store.get("pod", "worker-0", NAMESPACE)["metadata"]["uid"],
            },
            "type": "Warning",
            "reason": "BackOff",
            "message": "Back-off restarting failed container",
            "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": "2026-01-01T00:00:00Z",
            "count": 3,
        },
        NAMESPACE,
    )
    store.create(
        "slurmcluster",
        {
            "metadata": {"name": "soperator"},
            "status": {"phase": "Available", "readyLogin": 2, "conditions": ready("ControllersAvailable")},
        },
        NAMESPACE,
    )
    store.create(
        "nodeset",
        {
            "metadata": {"name": "worker"},
            "spec": {"replicas": 4, "ephemeralNodes": True, **NODE_SET_PARTS},
            "status": {
                "phase": "Ready",
                "replicas": 2,
                "labelSelector": "slurm.nebius.ai/nodeset=worker",
                "conditions": ready("PodsReady"),
            },
        },
        NAMESPACE,
    )
    store.create(
        "nodesetpowerstate",
        {
            "metadata": {"name": "worker"},
            "spec": {"nodeSetRef": "worker", "activeNodes": [0, 1]},
            "status": {"activeCount": 2, "conditions": ready("Ready")},
        },
        NAMESPACE,
    )
    store.create(
        "activecheck",
        {
            "metadata": {"name": "nccl"},
            "spec": {
                "checkType": "slurmJob",
                "runAfterCreation": True,
                "suspend": False,
                "schedule": "0 1 * * *",
            },
            "status": {"slurmJobsStatus": {"lastRunStatus": "Complete", "lastRunId": "17"}},
        },
        NAMESPACE,
    )
    template = {
        "metadata": {"labels": {"app": "vllm"}},
        "spec": {"containers": [{"name": "vllm", "image": "v1"}]},
    }
    workload = {"replicas": 2, "selector": {"matchLabels": {"app": "vllm"}}, "template": template}
    store.create("deployment", {"metadata": {"name": "vllm"}, "spec": workload}, NAMESPACE)
    store.create("statefulset", {"metadata": {"name": "db"}, "spec": workload}, NAMESPACE)
    job = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "check", "image": "nccl"}]}}}
    store.create(
        "cronjob",
        {"metadata": {"name": "nccl"}, "spec": {"schedule": "0 1 * * *", "jobTemplate": {"spec": job}}},
        NAMESPACE,
    )
    store.create(
        "scaledobject",
        {
            "metadata": {"name": "vllm"},
            "spec": {"scaleTargetRef": {"name": "vllm"}, "minReplicaCount": 1, "maxReplicaCount": 3},
        },
        NAMESPACE,
    )


class KubeWorld:
    """A served store. The store belongs to the server's thread: go to it through ``call``."""

    def __init__(self, directory: Path, certificates: Path) -> None:
        self.directory, self.certificates = directory, certificates
        self.store, self.faults, self.runner = ObjectStore(), ApiFaults(), LocalRunner()
        self.kubeconfig = directory / "kubeconfig"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.server: KubernetesDouble

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        fill(self.store)
        self.server = self.run(
            serve(
                self.store,
                token=TOKEN,
                viewer_token=VIEWER_TOKEN,
                certificates=self.certificates,
                runner=self.runner,
                logs=three_lines,
                faults=self.faults,
            )
        )
        self.write_kubeconfig(self.kubeconfig)

    def stop(self) -> None:
        self.run(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def write_kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        return write_kubeconfig(
            path, server=self.server.url, ca_file=self.server.ca_file, token=token, namespace=NAMESPACE
        )

    def run(self, doing: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(PATIENCE)

    def call(self, function: Callable[..., R], *args: Any, **options: Any) -> R:
        """Call a method of the store in the thread that it belongs to."""

        async def calling() -> R:
            return function(*args, **options)

        return self.run(calling())

    def get(self, kind: str, name: str) -> Object:
        return self.call(self.store.get, kind, name, NAMESPACE)

    def fault(self, effect: Any, matching: str, count: int | None = 1) -> None:
        self.call(self.faults.add, ApiFault("kubernetes", effect, matching, count))

    def server_watches(self) -> int:
        """How many watches are open: what a test waits for before it changes what is watched."""
        return self.store.subscriptions

    # kubectl

    def environment(self) -> dict[str, str]:
        # HOME, because kubectl keeps what it has discovered below it.
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.directory)}

    def kubectl(
        self, *args: str, stdin: bytes | str = b"", code: int = 0, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run kubectl to its end, and insist on its exit code."""
        stdin = stdin.encode() if isinstance(stdin, str) else stdin
        command, env = [kubectl_path(), *args], {**self.environment(), **(env or {})}
        while True:
            done = subprocess.run(command, input=stdin, capture_output=True, env=env, timeout=PATIENCE, check=False)
            # It reads from a websocket before it is ready for what comes, and loses that.
            if b"Unknown stream id" not in done.stderr:
                break
        assert done.returncode == code, f"kubectl {' '.join(args)}: {done.returncode}\n{done.stdout!r}\n{done.stderr!r}"
        return done

    def text(self, *args: str, **options: Any) -> str:
        return self.kubectl(*args, **options).stdout.decode()

    def json(self, *args: str) -> Any:
        return json.loads(self.text(*args, "-o", "json"))

    @contextmanager
    def kubectl_running(self, *args: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
        """kubectl left running, and ended with the block."""
        process = subprocess.Popen([kubectl_path(), *args], env=self.environment(), **options)
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@functools.cache
def kubectl_path() -> str:
    path = os.environ.get("KUBECTL") or shutil.which("kubectl")
    assert path, "these tests need kubectl: apt-get install kubernetes-client, or name one in KUBECTL"
    return path


@functools.cache
def kubectl_version() -> tuple[int, int]:
    done = subprocess.run(
        [kubectl_path(), "version", "--client", "-o", "json"], capture_output=True, text=True, check=True
    )
    found = re.match(r"v(\d+)\.(\d+)", json.loads(done.stdout)["clientVersion"]["gitVersion"])
    assert found, done.stdout
    return int(found[1]), int(found[2])


def eventually(condition: Callable[[], R], seconds: float = PATIENCE) -> R:
    """The condition's value as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, "what was waited for did not come to be"
        time.sleep(0.02)
    return value


@contextmanager
def kube_world(directory: Path, certificates: Path) -> Iterator[KubeWorld]:
    world = KubeWorld(directory, certificates)
    world.start()
    try:
        yield world
    finally:
        world.stop()
