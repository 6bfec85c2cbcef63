"""What users get wrong: one line on standard error that says what and what to do, and nothing left behind."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox.errors import DOCKER
from sandbox.preflight import with_free_ports
from sandbox.settings import Settings, home
from tests.integration.cluster import Cluster
from tests.integration.outside import Said, apt_config, command_line, refusal
from tests.integration.test_lifecycle import remains

NAME = f"wrong-{os.getpid()}"


def complaint(said: Said, *, status: int = 1) -> str:
    """The one line on standard error."""
    assert said.returncode == status, said.stdout + said.stderr
    assert re.fullmatch(r"sandbox: .+\n", said.stderr), said.stderr
    return said.stderr.removeprefix("sandbox: ").rstrip()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Of this process' own: other runs of these tests may be under way."""
    before = ours()
    yield
    assert remains(NAME) == []
    assert ours() == before


def ours() -> list[Path]:
    found = [*home().glob("*"), *(home() / "sandboxes").glob("*")]
    return sorted(path for path in found if str(os.getpid()) in path.name)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A home for sandboxes in which no root was ever built."""
    folder = home() / f"wrong-home-{os.getpid()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


# -------------------------------------------------------------------------------------------------- the machine


@pytest.mark.parametrize("command", ["up", "status", "down", "shell", "connections", "demo"])
def test_not_root(command: str) -> None:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
    said = command_line(command, "--name", NAME, prefix=nobody, env={"PYTHONDONTWRITEBYTECODE": "1"})
    assert complaint(said) == f"the sandbox needs root: run it with sudo, or without root {DOCKER}"


def test_no_debian(elsewhere: Path) -> None:
    hidden = ["unshare", "--mount", "--propagation=private", "bash", "-c", hide("/etc/debian_version"), "bash"]
    said = command_line("up", "--name", NAME, prefix=hidden, env={"SOPERATOR_SANDBOX_HOME": str(elsewhere)})
    assert complaint(said) == f"this is not a Debian machine: run {DOCKER} instead"
    assert list(elsewhere.iterdir()) == []


def hide(file: str) -> str:
    """Shell words that run a command with all of /etc there but for one file."""
    work = "/run/sandbox-test-etc"
    return (
        f"mkdir -p {work} && mount -t tmpfs none {work} && mkdir {work}/upper {work}/work"
        f" && mount -t overlay overlay -o lowerdir=/etc,upperdir={work}/upper,workdir={work}/work /etc"
        f' && rm {file} && exec "$@"'
    )


def test_no_network(elsewhere: Path, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        config = apt_config(tmp_path, f"http://127.0.0.1:{closed.getsockname()[1]}/debian")
        environment = {"SOPERATOR_SANDBOX_HOME": str(elsewhere), "APT_CONFIG": str(config)}
        line = complaint(command_line("up", "--name", NAME, env=environment))
    log = elsewhere / "roots/24.11.log"
    assert line == f"the root could not be built (the Debian archive cannot be reached): see {log} and run it again"
    assert "Connection refused" in log.read_text()
    # The log it names is there, and nothing that was built.
    assert {file.name for file in (elsewhere / "roots").iterdir() if file.is_dir()} <= {"24.11.debs"}
    assert not list((elsewhere / "roots").glob("*.debs/*"))
    assert not (elsewhere / "sandboxes").exists()


def test_no_archive_known_to_apt(elsewhere: Path, tmp_path: Path) -> None:
    config = apt_config(tmp_path, "http://127.0.0.1:9")
    (tmp_path / "sources.list").write_text("")
    environment = {"SOPERATOR_SANDBOX_HOME": str(elsewhere), "APT_CONFIG": str(config)}
    line = complaint(command_line("up", "--name", NAME, env=environment))
    assert line == "apt knows of no Debian archive yet: run `apt-get update` and try again"
    assert list(elsewhere.iterdir()) == []


def test_no_disk(elsewhere: Path) -> None:
    small = f'mount -t tmpfs -o size=64m none {elsewhere} && "$@"; code=$?; find {elsewhere} -mindepth 1; exit $code'
    prefix = ["unshare", "--mount", "--propagation=private", "bash", "-c", small, "bash"]
    said = command_line("up", "--name", NAME, prefix=prefix, env={"SOPERATOR_SANDBOX_HOME": str(elsewhere)})
    line = complaint(said)
    assert re.fullmatch(
        r".+/roots has 6\d MiB free, a root needs \d+: free some space or set .+ to a larger disk", line
    )
    assert said.stdout == ""


def test_a_tool_is_missing(elsewhere: Path) -> None:
    line = complaint(command_line("up", "--name", NAME, env={"PATH": "/nowhere"}))
    assert line == "unshare is not installed: run `apt-get install util-linux`"


@pytest.mark.parametrize("offset", [0, 1, 5, 20])
def test_a_port_is_taken(offset: int) -> None:
    with range_in_use(offset) as base:
        line = complaint(command_line("up", "--name", NAME, f"--port-base={base}"))
    service = {0: "ssh", 1: "slurmctld", 5: "nebius", 20: "slurmd of worker-0"}[offset]
    assert line.startswith(f"port {base + offset} ({service}) is taken by ")
    assert f"(process {os.getpid()})" in line
    assert "stop that, or choose another range with --port-base" in line


def test_a_range_of_ports_that_is_taken_is_passed_over_where_none_was_asked_for() -> None:
    try:
        with range_in_use(0) as free:
            said = command_line("up", "--name", NAME, "--workers=1", "--static=0")
            assert said.returncode == 0, said.stderr
            # Not "greater": a sandbox beside this one may have ended meanwhile, and left a lower range.
            assert Settings.load(Settings(name=NAME).paths.settings).port_base != free
    finally:
        command_line("down", "--name", NAME)


@contextmanager
def range_in_use(offset: int) -> Iterator[int]:
    """The range that a new sandbox would have, with one of its ports taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # A sandbox that is made meanwhile has chosen its range before, or finds this one taken.
        with (home() / ".ports.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            base = with_free_ports(Settings(name=NAME, workers=1, static=0)).port_base
            listener.bind(("127.0.0.1", base + offset))
            listener.listen()
        yield base


# -------------------------------------------------------------------------------------------------- the options


#: Of `up`, with what is said of it.
WRONG = [
    (["--slurm=25.11"], "there is no Slurm 25.11 here: choose one of 24.11, 26.05"),
    (["--root=/nowhere"], "no Slurm runs in /nowhere: see that `chroot DIR slurmctld -V` prints a version"),
    (["--soperator=3.0"], "there is no Soperator 3.0 here: choose 4.1 or 5.0"),
    (["--workers=0"], "--workers 0 is out of range: use 1 to 96"),
    (["--workers=97"], "--workers 97 is out of range: use 1 to 96"),
    (["--static=-1"], "--static -1 is out of range: use 0 to 64"),
    (["--workers=2", "--initial=3"], "--initial 3 is out of range: use 0 to 2"),
    (["--gpus=8", "--block=4"], "--block 4 is out of range: use 8 to 100000"),
    (["--port-base=80"], "--port-base 80 is out of range: use 1024 to 65335"),
]
#: Of a sandbox.
NAMES = ("Upper", "../escape", "a b", "-", "x" * 33, "")


def test_options_that_cannot_be() -> None:
    for options, line in WRONG:
        assert complaint(refusal("up", "--name", NAME, *options)) == line


@pytest.mark.parametrize("command", ["up", "down", "status"])
def test_names_that_cannot_be(command: str) -> None:
    for name in NAMES:
        line = complaint(refusal(command, f"--name={name}"))
        assert line == f"{name!r} cannot name a sandbox: use up to 32 lower-case letters, digits and dashes"


def test_words_that_mean_nothing() -> None:
    for words in (["up", "--workers=many"], ["up", "--no-such-option"], ["no-such-command"], []):
        assert complaint(refusal(*words), status=2).endswith("--help`")


def test_a_sandbox_that_is_not_there() -> None:
    for command, *words in (["status"], ["shell"], ["connections"], ["fault", "slurmctld-down"]):
        line = complaint(refusal(command, "--name", NAME, *words))
        assert line == f"there is no sandbox {NAME!r}: start it with `python -m sandbox up --name {NAME}`"


@pytest.mark.parametrize(
    ("conf", "said"),
    [
        ("Nonsense=1", "Parsing error at unrecognized key: Nonsense"),
        pytest.param("PreemptType=preempt/no_such", "failed to initialize preempt plugin", marks=pytest.mark.soak),
        pytest.param("SchedulerType=sched/no_such", "sched", marks=pytest.mark.soak),
    ],
)
def test_a_line_of_slurm_conf_that_slurm_refuses(conf: str, said: str) -> None:
    line = complaint(command_line("up", "--name", NAME, "--slurm-conf", conf))
    assert said in line
    assert line.endswith("correct that and try again; nothing was left behind")


# --------------------------------------------------------------------------------------------------- the faults


#: Of `fault`, with what is said of it.
IMPOSSIBLE = [
    (["node-dies", "worker-99"], "there is no node worker-99"),
    (["node-dies", "worker-1"], "worker-1 is powered down, there is no machine under it"),
    (["node-no-boot", "nonsense"], "there is no node nonsense"),
    (["node-drain", "worker-99", "maintenance"], "Invalid node name"),
    (["node-condition", "worker-99", "Ready"], "there is no node worker-99"),
    (["api", "kubernetes", "error", "--count=-1"], "a fault strikes at least one call"),
]


@pytest.mark.oldest_slurm
def test_faults_that_cannot_be_brought_about(cluster: Cluster) -> None:
    for words, said in IMPOSSIBLE:
        line = complaint(refusal("fault", "--name", cluster.settings.name, *words))
        assert line.startswith(f"{words[0]} could not be brought about (")
        assert said in line


def test_faults_that_nobody_knows() -> None:
    for words in (["meteor"], ["node-dies"], ["api", "azure", "error"], ["api", "nebius", "sulk"]):
        line = complaint(refusal("fault", "--name", NAME, *words), status=2)
        assert "choose from" in line or "required" in line
        assert line.endswith("--help`")
