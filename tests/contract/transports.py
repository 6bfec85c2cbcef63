"""Every transport under one face, so that one suite of tests runs against all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from airflow_provider_soperator.slurm.requests import Command, CommandOutput, Request
from airflow_provider_soperator.transports import Transport, rest
from airflow_provider_soperator.transports.kubernetes import KubernetesTransport
from airflow_provider_soperator.transports.local import LocalTransport
from airflow_provider_soperator.transports.rest import RestTransport, Tokens
from airflow_provider_soperator.transports.ssh import SshTransport
from sandbox.settings import NAMESPACE
from tests.integration.cluster import LOGIN, Cluster
from tests.patience import PATIENCE

T = TypeVar("T")


@dataclass(frozen=True)
class Run(Request[CommandOutput]):
    """Any command at all, and all that came of it."""

    argv: tuple[str, ...]
    stdin: bytes = b""
    timeout: float = 30.0
    max_output: int = 64 * 1024 * 1024

    def command(self) -> Command:
        return Command(self.argv, stdin=self.stdin, timeout=self.timeout, max_output=self.max_output)

    def read(self, answer: CommandOutput) -> CommandOutput:
        return answer


class Way(Protocol):
    """A transport as the tests use it."""

    def ask(self, request: Request[T]) -> T: ...

    def ask_at_once(self, *requests: Request[T]) -> list[T]:
        """All of them at the same time."""

    def close(self) -> None: ...


def outcomes(way: Way, *requests: Run) -> list[bytes | BaseException]:
    """What each of them printed, or how it failed, asked all at once; all have ended."""
    with ThreadPoolExecutor(len(requests)) as pool:
        running = [pool.submit(way.ask, request) for request in requests]
    return [one.exception() or one.result().stdout for one in running]


class AsyncWay:
    """A transport for an event loop, which runs in a thread of its own."""

    def __init__(self, make: Callable[[], Transport]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

        async def made() -> Transport:
            return make()

        self._transport = self._run(made())

    def ask(self, request: Request[T]) -> T:
        return self._run(self._transport.ask(request))

    def ask_at_once(self, *requests: Request[T]) -> list[T]:
        async def all_of_them() -> list[T]:
            return await asyncio.gather(*map(self._transport.ask, requests))

        return self._run(all_of_them())

    def in_loop(self, step: Callable[[], None]) -> None:
        """Do something in the event loop, and wait until it is done."""

        async def do() -> None:
            step()

        self._run(do())

    def close(self) -> None:
        self._run(self._transport.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


def inside(cluster: Cluster, *argv: str) -> tuple[str, ...]:
    """A program on the login node, as one whose machine is that node would start it."""
    environment = ("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root")
    return tuple(cluster.sandbox.init.enter(LOGIN, [*environment, *argv]))


def _paramiko(cluster: Cluster) -> Any:
    from airflow.providers.ssh.hooks.ssh import SSHHook

    return SSHHook(ssh_conn_id=connection_id(cluster)).get_conn()


async def _in_thread(cluster: Cluster) -> Callable[[], Any]:
    return partial(_paramiko, cluster)


async def kubernetes_client(cluster: Cluster) -> Any:
    import kubernetes_asyncio.config

    return await kubernetes_asyncio.config.new_client_from_config(str(cluster.paths.kubeconfig))


def connection_id(cluster: Cluster) -> str:
    """The Airflow connection to a sandbox; each has its own, as hooks remember them by name."""
    return f"login_{cluster.settings.name.replace('-', '_')}"


def url_of(cluster: Cluster) -> str:
    """The sandbox's slurmrestd."""
    return str(cluster.access["rest"]["url"])


def key_of(cluster: Cluster) -> bytes:
    """The key that its tokens are made from."""
    return Path(cluster.access["rest"]["jwt_key_file"]).read_bytes()


def minted(cluster: Cluster, user: str = "root") -> Tokens:
    return Tokens(partial(rest.minted, key_of(cluster), user))


def newest(cluster: Cluster) -> int:
    """The newest version of its interface that the sandbox's slurmrestd has."""
    return {"24.11": 42, "26.05": 45}[cluster.settings.slurm]


#: Those that run no commands.
REST: dict[str, Callable[[Cluster], Way]] = {
    "rest": lambda cluster: AsyncWay(lambda: RestTransport(url_of(cluster), minted(cluster))),
}
WAYS: dict[str, Callable[[Cluster], Way]] = {
    "local": lambda cluster: AsyncWay(lambda: LocalTransport(inside(cluster, "/bin/sh"))),
    "ssh": lambda cluster: AsyncWay(lambda: SshTransport(lambda: _in_thread(cluster))),
    "kubernetes": lambda cluster: AsyncWay(lambda: KubernetesTransport(lambda: kubernetes_client(cluster), NAMESPACE)),
    **REST,
}
