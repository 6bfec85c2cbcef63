"""A sandbox's life: up, up again, crashes of every kind, down; and what each leaves."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sandbox.control import Init
from sandbox.lifecycle import Sandbox
from sandbox.preflight import _claimed_ranges
from sandbox.rootfs import RootCache, debian_mirror
from sandbox.settings import PORTS_PER_SANDBOX, Settings, home
from tests.integration.cluster import Cluster
from tests.integration.outside import (
    REPOSITORY,
    accounted,
    apt_config,
    command_line,
    eventually,
    interrupted,
    kubectl,
    ssh,
    wait_until_saved,
)
from tests.patience import PATIENCE

_serial = itertools.count()


@pytest.fixture
def name() -> Iterator[str]:
    """A name for a sandbox of the test's own, of which nothing is left afterwards."""
    made = f"life-{os.getpid()}-{next(_serial)}"
    yield made
    assert command_line("down", "--name", made).returncode == 0
    assert remains(made) == []


def bring_up(name: str, *options: str) -> Cluster:
    said = command_line("up", "--name", name, *(options or ("--workers=2", "--static=1")))
    assert said.returncode == 0, said.stderr
    return Cluster(Sandbox.existing(name))


def processes_of(name: str) -> list[psutil.Process]:
    """The sandbox's processes, by the tree below its outermost one and by the folder in their command lines."""
    settings = Settings(name=name)
    outer = Init(settings.paths).outer()
    tree = [outer, *outer.children(recursive=True)] if outer else []
    state = str(settings.paths.state)
    named = [p for p in psutil.process_iter(["cmdline"]) if state in " ".join(p.info["cmdline"] or [])]
    return list({process.pid: process for process in (*tree, *named)}.values())


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def mounts_of(name: str) -> list[str]:
    """Mounts of the sandbox in the namespace of any process of this machine."""
    state = str(Settings(name=name).paths.state)
    found = []
    for table in Path("/proc").glob("[0-9]*/mounts"):
        try:
            found += [f"{table}: {line}" for line in table.read_text().splitlines() if state in line]
        except OSError:
            continue
    return found


def listening() -> set[int]:
    return {c.laddr.port for c in psutil.net_connections("inet") if c.laddr and not c.raddr}


def remains(name: str, ports: tuple[int, ...] = ()) -> list[str]:
    """All that is left of a sandbox on this machine."""
    state = Settings(name=name).paths.state
    # Once it is down, another sandbox may take its range, and may go or come as it is looked for.
    bases, listened = _claimed_ranges(name), listening()
    bases |= _claimed_ranges(name)
    others = {port for base in bases for port in range(base, base + PORTS_PER_SANDBOX)}
    files = [str(file) for file in (state, home() / f"{name}.lock") if file.exists()]
    return [
        *map(str, processes_of(name)),
        *mounts_of(name),
        *map(str, (listened - others).intersection(ports)),
        *files,
    ]


def own_processes(cluster: Cluster) -> dict[str, int]:
    return {name: process["pid"] for name, process in cluster.sandbox.init.processes().items()}


# ------------------------------------------------------------------------------------------------- up, up again


# The lanes of a run of all tests are sandboxes side by side.
@pytest.mark.soak
def test_two_sandboxes_side_by_side_know_nothing_of_each_other(name: str) -> None:
    other_name = f"{name}-b"
    one = bring_up(name)
    try:
        other = bring_up(other_name)
        ranges = [set(c.access["ports"].values()) for c in (one, other)]
        assert not ranges[0] & ranges[1]
        assert one.access["ssh"]["host_key"] != other.access["ssh"]["host_key"]
        job = one.sbatch("--job-name=mine", wrap="echo mine > /root/file-of-one")
        assert accounted(one, job)["State"] == "COMPLETED"
        assert other.run("squeue", "--noheader", "--all") == ""
        assert other.run("sacct", "--noheader", "--allocations") == ""
        assert one.run("cat", "/root/file-of-one") == "mine\n"
        assert other.try_run("test", "-e", "/root/file-of-one").returncode == 1
        # The token of one opens nothing of the other.
        foreign = kubectl(one, f"--server={other.access['kubernetes']['server']}", "get", "pods")
        assert foreign.returncode == 1
    finally:
        assert command_line("down", "--name", other_name).returncode == 0
    assert remains(other_name, tuple(ranges[1])) == []
    assert ssh(one, "sinfo").returncode == 0


def test_a_second_up_changes_nothing_and_with_other_options_is_refused(name: str) -> None:
    cluster = bring_up(name)
    before, access = own_processes(cluster), cluster.paths.access.read_text()
    bring_up(name)
    assert own_processes(cluster) == before
    assert cluster.paths.access.read_text() == access
    # Also without the options that it was made with; and others are refused.
    assert command_line("up", "--name", name).returncode == 0
    assert own_processes(cluster) == before
    said = command_line("up", "--name", name, "--workers=3", "--slurm=26.05")
    assert said.returncode == 1
    assert said.stderr.count("\n") == 1
    assert "--workers 2" in said.stderr
    assert "--slurm 24.11" in said.stderr
    assert f"down --name {name}" in said.stderr
    assert own_processes(cluster) == before


def test_a_root_of_ones_own_says_itself_which_slurm_it_has(name: str) -> None:
    root = RootCache().ensure("26.05", lambda share, label: None)
    said = command_line("up", "--name", name, f"--root={root}", "--slurm=24.11")
    assert "has Slurm 26.05, not 24.11" in said.stderr
    cluster = bring_up(name, f"--root={root}", "--workers=1", "--static=0")
    assert (cluster.settings.slurm, cluster.settings.soperator) == ("26.05", "5.0")
    assert " 26.05." in cluster.run("sinfo", "--version")


# ------------------------------------------------------------------------------------------------------ crashes


def test_a_killed_sandbox_leaves_nothing_and_comes_back_with_its_history(name: str) -> None:
    cluster = bring_up(name)
    job = cluster.sbatch("--job-name=before-the-crash")
    wait_until_saved(cluster)
    kept = accounted(cluster, job)
    cluster.run("bash", "-c", "echo kept > /home/alice/file")
    outer, ports = cluster.sandbox.init.outer(), tuple(cluster.access["ports"].values())
    assert outer is not None
    outer.kill()
    # Those below the outermost one follow it, and hold their mounts to their last moment.
    eventually("processes and mounts are gone", lambda: not processes_of(name) and not mounts_of(name))
    eventually("its ports are free", lambda: not listening().intersection(ports))
    said = command_line("status", "--name", name)
    assert said.returncode == 1
    assert "does not run" in said.stderr
    cluster = bring_up(name)
    assert tuple(cluster.access["ports"].values()) == ports
    assert accounted(cluster, job) == kept
    assert cluster.run("cat", "/home/alice/file") == "kept\n"
    after = cluster.sbatch("--gpus=1")
    assert int(after) > int(job)
    assert accounted(cluster, after)["State"] == "COMPLETED"
    # One that has crashed can also be brought down.
    outer = cluster.sandbox.init.outer()
    assert outer is not None
    outer.kill()
    assert command_line("down", "--name", name).returncode == 0
    eventually("nothing is left", lambda: remains(name, ports) == [])


def test_a_killed_cloud_and_munged_are_healed_without_touching_nodes_or_block(name: str) -> None:
    cluster = bring_up(name)
    cluster.power_up("worker-1")
    running = cluster.held_job("--gpus=1", "--nodelist=worker-1")
    cluster.wait_job(running, "RUNNING")

    def objects() -> dict[str, str]:
        listed = json.loads(kubectl(cluster, "get", "pods,nodes,nodesets", "--output=json").stdout)["items"]
        return {f"{one['kind']}/{one['metadata']['name']}": one["metadata"]["uid"] for one in listed}

    before, uids, ledger = own_processes(cluster), objects(), cluster.ledger()
    for daemon in ("cloud", "munged"):
        cluster.sandbox.init.signal(daemon, signal.SIGKILL)
    assert command_line("status", "--name", name).returncode == 1
    assert kubectl(cluster, "get", "pods").returncode == 1
    bring_up(name)
    after = own_processes(cluster)
    for daemon in ("cloud", "munged"):
        assert after.pop(daemon) != before.pop(daemon)
    assert after == before
    assert objects() == uids
    assert cluster.ledger() == ledger
    cluster.let_go(running)
    assert accounted(cluster, running)["State"] == "COMPLETED"
    # And it goes on from there: nodes come and go as before.
    cluster.power_down("worker-1")
    cluster.wait("the block has the GPUs back", lambda: cluster.usage() == cluster.settings.gpus)


# Tests of a shared sandbox kill the other daemons, and have them started again in the same way.
@pytest.mark.soak
def test_up_starts_any_daemon_that_has_ended(name: str) -> None:
    cluster = bring_up(name)
    cluster.sandbox.init.signal("mariadbd", signal.SIGKILL)
    assert command_line("status", "--name", name).returncode == 1
    bring_up(name)
    assert command_line("status", "--name", name).returncode == 0
    job = ssh(cluster, "sbatch --parsable --output=/root/%j.out --wrap=true").stdout.strip()
    assert accounted(cluster, job)["State"] == "COMPLETED"


def test_a_sandbox_whose_making_was_killed_is_made_afresh(name: str) -> None:
    making = subprocess.Popen(
        [sys.executable, "-m", "sandbox", "up", "--name", name, "--workers=2"], cwd=REPOSITORY, stdout=subprocess.PIPE
    )
    assert making.stdout is not None
    for line in making.stdout:
        if b"starting slurmdbd" in line:
            break
    making.kill()
    making.wait()
    cluster = bring_up(name, "--workers=2")
    assert accounted(cluster, cluster.sbatch())["State"] == "COMPLETED"


def test_an_interrupted_first_up_leaves_nothing(name: str) -> None:
    for _ in range(9):
        status, stderr = interrupted("up", "--name", name, at="starting slurmdbd")
        if status:
            break
        # On a busy machine it was up before it heard of that.
        assert command_line("down", "--name", name).returncode == 0
    assert (status, stderr) == (130, "sandbox: interrupted; run the same command again to go on\n")
    assert remains(name) == []


# --------------------------------------------------------------------------------------------------------- down


def test_down_leaves_no_process_no_mount_no_port_and_no_file(name: str) -> None:
    cluster = bring_up(name)
    cluster.held_job("--gpus=1")
    processes, ports = processes_of(name), tuple(cluster.access["ports"].values())
    assert len(processes) > 20
    said = command_line("down", "--name", name)
    assert (said.returncode, said.stdout, said.stderr) == (0, f"sandbox {name} is down\n", "")
    assert remains(name, ports) == []
    # Its first process is the last that the kernel lets go, when it has let go of all the others.
    eventually("no process is left", lambda: not any(map(runs, processes)))


def test_down_waits_for_nobody_who_has_entered(name: str) -> None:
    small = Sandbox(Settings(name=name, workers=1, static=0, initial=0, bare=True))
    small.up()
    outer = small.init.outer()
    assert outer is not None
    (first,) = outer.children()
    enter = ["nsenter", f"--pid=/proc/{first.pid}/ns/pid", "sh", "-c", "echo in; exec sleep 99"]
    with subprocess.Popen(enter, stdout=subprocess.PIPE) as outsider:
        try:
            assert outsider.stdout is not None
            assert outsider.stdout.readline() == b"in\n"
            # It does not collect what it has started, so the kernel keeps the sandbox's first process.
            outsider.send_signal(signal.SIGSTOP)
            small.down()
            assert first.is_running()
            assert remains(name) == []
        finally:
            outsider.kill()


def test_down_of_a_sandbox_that_is_not_there_is_no_error(name: str) -> None:
    for _ in range(2):
        said = command_line("down", "--name", name)
        assert (said.returncode, said.stderr) == (0, "")
    assert remains(name) == []


def test_a_sandbox_of_tests_goes_with_them_if_they_are_killed(name: str, tmp_path: Path) -> None:
    up, settings = tmp_path / "up", f"Settings(name={name!r}, workers=1, static=0, initial=0, bare=True)"
    test = "import pathlib, time\nfrom sandbox.lifecycle import Sandbox\nfrom sandbox.settings import Settings\n"
    test += f"def test_it():\n    Sandbox({settings}).up()\n    pathlib.Path({str(up)!r}).touch()\n    time.sleep(99)\n"
    (tmp_path / "test_it.py").write_text(test)
    alone = ["-p", "tests.keeper", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "-c", os.devnull]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *alone, str(tmp_path)],
        cwd=REPOSITORY,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    ) as run:
        try:
            eventually("the sandbox is up", lambda: up.exists() or run.poll() is not None)
            assert processes_of(name)
        finally:
            run.kill()
    eventually("it is gone", lambda: remains(name) == [])


# ----------------------------------------------------------------------------------------------------- the root


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The packages fetched from now on: apt's mirror is one on the loopback, which sends callers on to the real one."""
    real, fetched = debian_mirror().rstrip("/"), []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".deb"):
                fetched.append(self.path.rpartition("/")[2])
            self.send_response(302)
            self.send_header("Location", real + self.path)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("APT_CONFIG", str(apt_config(tmp_path, f"http://127.0.0.1:{server.server_port}")))
        yield fetched
        server.shutdown()


@pytest.mark.soak
def test_a_root_half_built_is_continued(packages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The slowest test: it builds a root, once to the middle and once to its end."""
    folder = home() / f"life-{os.getpid()}"
    monkeypatch.setenv("SOPERATOR_SANDBOX_HOME", str(folder))
    roots = RootCache()
    try:
        command = [sys.executable, "-m", "sandbox", "up", "--workers=1", "--static=0"]
        making = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        assert making.stdout is not None
        assert any("unpacking the base" in line for line in iter(making.stdout.readline, ""))
        making.kill()
        making.wait()
        # The builder has ended with it, and nothing of it is mounted: else the next one would work beside it.
        partial = roots.path("24.11.partial")
        eventually("the builder has ended", lambda: not builders(partial))
        assert partial.exists()
        assert not roots.ready("24.11")
        first = set(packages)
        assert len(first) > 50
        packages.clear()

        said = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert said.returncode == 0, said.stderr
        assert packages
        assert not first & set(packages), "what was downloaded before the kill was downloaded again"
        assert roots.ready("24.11")
        assert {file.name for file in roots.folder.iterdir()} == {"24.11", "24.11.json", "24.11.lock", "24.11.log"}

        # A root that was changed since is not trusted.
        binary = roots.path("24.11") / "usr/sbin/slurmctld-wlm"
        os.truncate(binary, 1000)
        assert not roots.ready("24.11")
    finally:
        purged = command_line("down", "--all", "--purge")
        left = [file.name for file in folder.iterdir()] if folder.exists() else []
        shutil.rmtree(folder, ignore_errors=True)
    assert purged.returncode == 0
    assert set(left) <= {"sandboxes", ".ports.lock"}


def builders(partial: Path) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if str(partial) in " ".join(p.info["cmdline"] or [])]
