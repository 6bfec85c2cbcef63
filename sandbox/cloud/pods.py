"""Commands in Pods, and their logs: what `kubectl exec` and `kubectl logs` reach is the real process behind a Pod."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from typing import Protocol

from sandbox.control import Init, enter_pod
from sandbox.kube.execution import Stdio
from sandbox.kube.objects import Object
from sandbox.settings import Settings


class Daemons(Protocol):
    """Knows which process runs in a Pod's container; None for a Pod that is only an object."""

    def daemon_of(self, pod: Object, container: str) -> str | None: ...


class Runner:
    """Enters the namespaces of the daemon behind a container."""

    def __init__(self, kubelet: Daemons, init: Init) -> None:
        self._kubelet, self._init = kubelet, init

    async def spawn(self, pod: Object, container: str, argv: list[str], stdio: Stdio) -> Process:
        daemon = self._kubelet.daemon_of(pod, container)
        processes = await asyncio.to_thread(self._init.processes)
        inner = processes.get(daemon or "", {}).get("inner")
        if inner is None:
            raise OSError(f"nothing runs in container {container} of {pod['metadata']['name']}")
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8",
            "HOME": "/root",
            "TERM": "xterm",
        }
        return await asyncio.create_subprocess_exec(*enter_pod(inner, argv), env=environment, **stdio.options())


class Logs:
    """What the daemon behind a container has printed."""

    def __init__(self, kubelet: Daemons, settings: Settings) -> None:
        self._kubelet, self._settings = kubelet, settings

    async def __call__(self, pod: Object, container: str, tail_lines: int | None) -> bytes:
        daemon = self._kubelet.daemon_of(pod, container)
        file = self._settings.paths.logs / f"{daemon}.log"
        if daemon is None or not file.exists():
            return b""
        lines = file.read_bytes().splitlines(keepends=True)
        return b"".join(lines if tail_lines is None else lines[len(lines) - min(tail_lines, len(lines)) :])
