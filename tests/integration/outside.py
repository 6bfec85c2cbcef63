"""The sandbox as its users reach it, from outside: its command line, ssh, kubectl; and what accounting keeps."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from unittest import mock

from nebius.api.nebius.capacity.v1 import CapacityBlockGroupServiceClient, GetCapacityBlockGroupRequest
from nebius.api.nebius.mk8s.v1 import GetNodeGroupRequest, NodeGroupServiceClient
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from sandbox import cli
from tests.integration.cluster import Cluster
from tests.patience import PATIENCE

T = TypeVar("T")

REPOSITORY = Path(__file__).parents[2]

Said = subprocess.CompletedProcess[str]


def command_line(*words: str, prefix: Sequence[str] = (), env: dict[str, str] | None = None) -> Said:
    """``python -m sandbox`` as a user types it, behind a command that changes the machine for it if need be."""
    return _run([*prefix, sys.executable, "-m", "sandbox", *words], env=env)


def interrupted(*words: str, at: str) -> tuple[int, str]:
    """The command line, interrupted once it has said that: its status, and what it says as it ends."""
    running = subprocess.Popen(
        [sys.executable, "-m", "sandbox", *words],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background may ignore it, and all that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdout is not None
    assert any(at in line for line in iter(running.stdout.readline, ""))
    running.send_signal(signal.SIGINT)
    _, stderr = running.communicate(timeout=PATIENCE)
    return running.returncode, stderr


def refusal(*words: str) -> Said:
    """What the command line says of what it refuses at once; without a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), mock.patch.object(signal, "signal"):
        try:
            status = cli.main([*words])
        except SystemExit as end:
            status = int(end.code or 0)
    return Said(words, status, out.getvalue(), err.getvalue())


def fault(cluster: Cluster, *words: str) -> str:
    """Break something from the command line, and return what that says; without a process of its own."""
    cluster.is_broken = True
    options = cli.parser().parse_args(["fault", "--name", cluster.settings.name, *words])
    with contextlib.redirect_stdout(io.StringIO()) as said:
        options.run(options)
    return said.getvalue()


def ssh_files(cluster: Cluster) -> list[str]:
    """The options with which ssh, scp and sftp use the key and the known hosts of the access file, and nothing else."""
    ssh = cluster.access["ssh"]
    options = ["IdentitiesOnly=yes", "BatchMode=yes", f"UserKnownHostsFile={ssh['known_hosts']}"]
    return ["-F", "none", "-i", ssh["key_file"], *(word for option in options for word in ("-o", option))]


def ssh_command(cluster: Cluster, *options: str, user: str = "root") -> list[str]:
    ssh = cluster.access["ssh"]
    # The first value that ssh sees of an option is the one that counts.
    return ["ssh", *options, *ssh_files(cluster), "-p", str(ssh["port"]), f"{user}@{ssh['host']}"]


def ssh(cluster: Cluster, words: str, *options: str, user: str = "root") -> Said:
    return _run([*ssh_command(cluster, *options, user=user), words])


def kubectl(cluster: Cluster, *words: str, stdin: str | None = None) -> Said:
    command = ["kubectl", "--kubeconfig", cluster.access["kubernetes"]["kubeconfig"], *words]
    # Over a websocket it may lose what comes before it is ready, an exit code included.
    return _run(command, stdin=stdin, env={"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"})


class Nebius:
    """The Nebius SDK on the endpoint of the access file; calls that fail for good are soon over."""

    #: For a call that hangs, and for all others.
    BRIEF: ClassVar[dict[str, Any]] = {"timeout": 5.0, "per_retry_timeout": 5.0, "auth_timeout": 5.0, "retries": 1}
    PATIENT: ClassVar[dict[str, Any]] = dict.fromkeys(BRIEF, float(PATIENCE)) | {"retries": 1}

    def __init__(self, cluster: Cluster, credentials: str = "") -> None:
        self._facts = cluster.access["nebius"]
        self._sdk = SDK(
            resolver=Constant(self._facts["endpoint"]),
            options=[("nebius.insecure", self._facts["insecure"])],
            credentials=credentials or self._facts["token"],
            user_agent_prefix="sandbox-tests/0",
        )

    def __enter__(self) -> Nebius:
        return self

    def __exit__(self, *_: object) -> None:
        self._sdk.sync_close()

    def block(self) -> Any:
        request = GetCapacityBlockGroupRequest(id=self._facts["capacity_block_group"])
        return CapacityBlockGroupServiceClient(self._sdk).get(request, **self.PATIENT).wait()

    def group(self, role: str, *, hangs: bool = False) -> Any:
        request = GetNodeGroupRequest(id=self._facts["node_groups"][role])
        return NodeGroupServiceClient(self._sdk).get(request, **(self.BRIEF if hangs else self.PATIENT)).wait()


def accounted(cluster: Cluster, job: str) -> dict[str, str]:
    """What accounting has of a job, once it has the job's end."""
    columns = ["JobIDRaw", "JobName", "User", "Account", "Partition", "State", "ExitCode", "NodeList", "AllocTRES"]
    columns += ["Restarts", "SubmitLine", "End"]
    separator = "\x1f"
    words = ["--noheader", "--allocations", "--parsable2", f"--delimiter={separator}", f"--format={','.join(columns)}"]

    def ended() -> dict[str, str] | None:
        fields = cluster.run("sacct", f"--jobs={job}", *words).strip().split(separator)
        return dict(zip(columns, fields, strict=True)) if fields[-1] not in ("", "Unknown") else None

    return cluster.wait(f"accounting has the end of job {job}", ended) or {}


def wait_until_saved(cluster: Cluster) -> None:
    """slurmctld writes its state down every few seconds; when it is killed it forgets what came later."""

    def change() -> None:
        cluster.run("scancel", cluster.sbatch("--hold"))
        cluster._wait_nodes_saved()

    cluster.wait_saved("job", change)


def apt_config(folder: Path, mirror: str) -> Path:
    """A configuration for APT_CONFIG with which apt knows of one Debian mirror only, and has read its lists before."""
    listed = Path("/var/lib/apt/lists").glob("*_dists_*_InRelease")
    release = next(file for file in listed if "\nLabel: Debian\n" in file.read_text(errors="replace"))
    suite = release.name.partition("_dists_")[2].removesuffix("_InRelease")
    sources, config, empty, lists = (folder / name for name in ("sources.list", "apt.conf", "empty", "lists"))
    empty.mkdir()
    lists.mkdir()
    architecture = _run(["dpkg", "--print-architecture"]).stdout.strip()
    prefix = f"{mirror.partition('//')[2].replace('/', '_')}_dists_{suite}"
    shutil.copy(release, lists / f"{prefix}_InRelease")
    (lists / f"{prefix}_main_binary-{architecture}_Packages").touch()
    sources.write_text(f"deb {mirror} {suite} main\n")
    settings = {"Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": empty, "Dir::State::lists": lists}
    config.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    return config


def eventually(what: str, condition: Callable[[], T], timeout: float = PATIENCE) -> T:
    """Wait until a condition is true and return what it gave; it may hold when no sandbox runs."""
    deadline = time.monotonic() + timeout
    while not (outcome := condition()):
        assert time.monotonic() < deadline, f"after {timeout} s still not: {what}"
        time.sleep(0.05)
    return outcome


def _run(command: list[str], *, stdin: str | None = None, env: dict[str, str] | None = None) -> Said:
    return subprocess.run(
        command,
        cwd=REPOSITORY,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        **({"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin}),
    )
