"""Commands in pods, over both ways kubectl has had for them and over those of the Python clients."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream
from kubernetes_asyncio import client as aio_client
from kubernetes_asyncio import config as aio_config
from kubernetes_asyncio.stream import WsApiClient

from tests.patience import PATIENCE
from tests.sandbox.kube_world import NAMESPACE, KubeWorld, eventually, kube_world, kubectl_path, kubectl_version

#: How kubectl is told which way to take: before 1.29 it has only the one, since 1.29 both.
WAYS: dict[str, dict[str, str]] = {"spdy": {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}}
if kubectl_version() >= (1, 29):
    WAYS["websocket"] = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "true"}

BOTH_STREAMS = ["sh", "-c", "echo to-out; echo to-err >&2; exit 3"]
MEGABYTE = bytes(range(256)) * 4096


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeWorld]:
    with kube_world(tmp_path, tmp_path_factory.getbasetemp() / "kube-certificates") as made:
        yield made


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> dict[str, str]:
    return WAYS[request.param]


# kubectl


def test_streams_and_exit_code(world: KubeWorld, way: dict[str, str]) -> None:
    done = world.kubectl("exec", "worker-0", "--", *BOTH_STREAMS, code=3, env=way)
    assert done.stdout == b"to-out\n"
    assert done.stderr.startswith(b"to-err\n")
    assert b"exit code 3" in done.stderr


def test_container(world: KubeWorld, way: dict[str, str]) -> None:
    done = world.kubectl("exec", "login-0", "-c", "munge", "--", "sh", "-c", "echo $POD/$CONTAINER", env=way)
    assert done.stdout == b"login-0/munge\n"


def test_a_megabyte_there_and_back(world: KubeWorld, way: dict[str, str]) -> None:
    assert world.kubectl("exec", "-i", "worker-0", "--", "cat", stdin=MEGABYTE, env=way).stdout == MEGABYTE


def test_input_that_the_command_does_not_read(world: KubeWorld, way: dict[str, str]) -> None:
    world.kubectl("exec", "-i", "worker-0", "--", "true", stdin=MEGABYTE, env=way)


def test_a_command_killed_by_a_signal(world: KubeWorld, way: dict[str, str]) -> None:
    world.kubectl("exec", "worker-0", "--", "sh", "-c", "kill -9 $$", code=137, env=way)


def test_commands_that_cannot_run(world: KubeWorld, way: dict[str, str]) -> None:
    missing = world.kubectl("exec", "worker-0", "--", "no-such-command", code=1, env=way)
    assert b'exec: "no-such-command": executable file not found in $PATH' in missing.stderr
    wrong = world.kubectl("exec", "worker-0", "-c", "nope", "--", "true", code=1, env=way)
    assert b"container nope is not valid for pod worker-0" in wrong.stderr
    over = world.kubectl("exec", "finished", "--", "true", code=1, env=way)
    assert b"cannot exec into a container in a completed pod" in over.stderr
    world.call(world.store.patch, "pod", "worker-0", {"status": {"phase": "Unknown"}}, NAMESPACE)
    lost = world.kubectl("exec", "worker-0", "--", "true", code=1, env=way)
    assert b'container not found ("slurmd")' in lost.stderr
    assert world.runner.processes == []


def test_a_client_that_goes_away_takes_its_processes_along(world: KubeWorld, way: dict[str, str]) -> None:
    # kubectl loses what comes before it is ready, and sends its input once it is.
    script = "read x; sleep 1000 & echo $!; wait"
    before = dict(os.environ)
    os.environ.update(way)
    try:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with world.kubectl_running("exec", "-i", "worker-0", "--", "sh", "-c", script, **pipes) as kubectl:
            assert kubectl.stdin is not None
            assert kubectl.stdout is not None
            kubectl.stdin.write(b"go on\n")
            kubectl.stdin.flush()
            child = int(kubectl.stdout.readline())
    finally:
        os.environ.clear()
        os.environ.update(before)
    [process] = world.runner.processes
    eventually(lambda: process.returncode is not None)
    assert process.returncode == -9
    eventually(lambda: not _alive(child))


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    # Nobody may be there to reap what was adopted by process 1 in a container.
    return state != "Z"


class TerminalSession:
    """kubectl on a terminal, and what it shows there."""

    def __init__(self, world: KubeWorld, way: dict[str, str], script: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
        self.shown = b""
        environment = {**world.environment(), **way}
        argv = ["exec", "-it", "worker-0", "--", "sh", "-c", script]
        self.process = subprocess.Popen(
            [kubectl_path(), *argv],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
        )
        os.close(slave)

    def await_text(self, text: bytes) -> None:
        while text not in self.shown:
            ready, _, _ = select.select([self._master], [], [], PATIENCE)
            try:
                data = os.read(self._master, 4096) if ready else b""
            except OSError:
                data = b""
            assert data, f"{text!r} never came: {self.shown!r}"
            self.shown += data

    def type(self, text: bytes) -> None:
        os.write(self._master, text)

    def end(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._master)


#: kubectl tells the size once it is ready for what comes, and loses what came before.
IS_READY = "until [ \"$(stty size)\" = '33 101' ]; do sleep 0.02; done; "


def test_terminal(world: KubeWorld, way: dict[str, str]) -> None:
    script = IS_READY + "test -t 0 && test -t 1 && test -t 2 && echo si''zed; read x; echo g''ot $x; exit 4"
    session = TerminalSession(world, way, script)
    session.await_text(b"sized")
    session.type(b"word\n")
    session.await_text(b"got word")
    assert session.end() == 4


def test_interrupt_on_a_terminal(world: KubeWorld, way: dict[str, str]) -> None:
    script = IS_READY + "trap 'echo cau''ght; exit 5' INT; echo rea''dy; while :; do sleep 0.02; done"
    session = TerminalSession(world, way, script)
    session.await_text(b"ready")
    session.type(b"\x03")
    session.await_text(b"caught")
    assert session.end() == 5


# The Python clients


@pytest.fixture
def core(world: KubeWorld) -> Iterator[Any]:
    with config.new_client_from_config(str(world.kubeconfig)) as api:
        yield client.CoreV1Api(api)


def run(core: Any, argv: list[str], **options: Any) -> Any:
    wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
    return stream(core.connect_get_namespaced_pod_exec, "worker-0", NAMESPACE, command=argv, **wanted)


def test_python_stream(core: Any) -> None:
    assert run(core, ["echo", "hello"]) == "hello\n"
    socket = run(core, BOTH_STREAMS, _preload_content=False)
    socket.run_forever(timeout=PATIENCE)
    assert (socket.read_stdout(), socket.read_stderr(), socket.returncode) == ("to-out\n", "to-err\n", 3)


def test_python_stream_by_post(core: Any) -> None:
    said = stream(core.connect_post_namespaced_pod_exec, "worker-0", NAMESPACE, command=["echo", "posted"], stdout=True)
    assert said == "posted\n"


def test_python_stream_with_input(core: Any) -> None:
    socket = run(core, ["sh", "-c", "read x; echo got $x"], stdin=True, _preload_content=False)
    socket.write_stdin("word\n")
    socket.run_forever(timeout=PATIENCE)
    assert (socket.read_stdout(), socket.returncode) == ("got word\n", 0)


def test_python_stream_that_is_closed_early(world: KubeWorld, core: Any) -> None:
    socket = run(core, ["sleep", "1000"], _preload_content=False)
    eventually(lambda: world.runner.processes)
    socket.close()
    eventually(lambda: world.runner.processes[0].returncode is not None)


def test_python_stream_that_is_refused(core: Any) -> None:
    # Some versions of the client trip over the missing body of the exception they are about to raise.
    with pytest.raises((ApiException, AttributeError)) as caught:
        run(core, ["true"], container="nope")
    refusal = caught.value if isinstance(caught.value, ApiException) else caught.value.__context__
    assert isinstance(refusal, ApiException)
    assert "Handshake status 400" in str(refusal.reason)


def test_many_at_once(world: KubeWorld) -> None:
    async def scenario() -> list[str]:
        settings: Any = aio_client.Configuration()
        await aio_config.load_kube_config(str(world.kubeconfig), client_configuration=settings)
        async with WsApiClient(settings) as api:
            core: Any = aio_client.CoreV1Api(api)
            argv = ("sh", "-c", "sleep 0.1; echo said $0")
            calls = (
                core.connect_get_namespaced_pod_exec("worker-0", NAMESPACE, command=[*argv, str(n)], stdout=True)
                for n in range(40)
            )
            return list(await asyncio.gather(*calls))

    assert asyncio.run(scenario()) == [f"said {n}\n" for n in range(40)]


def test_asyncio_stream(world: KubeWorld) -> None:
    async def scenario() -> tuple[str, list[tuple[int, bytes]], int]:
        settings = aio_client.Configuration()
        await aio_config.load_kube_config(str(world.kubeconfig), client_configuration=settings)
        async with WsApiClient(settings) as api:
            core: Any = aio_client.CoreV1Api(api)
            wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False}
            name = ("worker-0", NAMESPACE)
            said = await core.connect_get_namespaced_pod_exec(*name, command=["echo", "hello"], **wanted)
            opening = await core.connect_get_namespaced_pod_exec(
                *name, command=BOTH_STREAMS, _preload_content=False, **wanted
            )
            frames, code = [], -1
            async with opening as socket:
                async for message in socket:
                    channel, data = message.data[0], message.data[1:]
                    if channel == 3:
                        code = WsApiClient.parse_error_data(data.decode())
                    elif data:
                        frames.append((channel, data))
            return said, sorted(frames), code

    assert asyncio.run(scenario()) == ("hello\n", [(1, b"to-out\n"), (2, b"to-err\n")], 3)
