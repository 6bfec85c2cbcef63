"""What times the jail, run here as it is run on a cluster, and what is made of what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_provider_soperator.slurm import jail
from airflow_provider_soperator.slurm.files import FileError
from airflow_provider_soperator.slurm.jail import LOGIN, JailLook, Latency, ProbeJail, ProbeJailOnNodes
from airflow_provider_soperator.slurm.jail_probe import OPERATIONS, PREFIX
from airflow_provider_soperator.slurm.requests import CommandOutput


def run(probe: ProbeJail) -> CommandOutput:
    """As the login node would, by this Python."""
    argv = (sys.executable, *probe.command().argv[1:])
    said = subprocess.run(argv, capture_output=True, timeout=60, check=False)
    return CommandOutput(said.returncode, said.stdout, said.stderr)


def test_each_operation_is_timed_and_nothing_is_left(tmp_path: Path) -> None:
    probe = ProbeJail(folder=str(tmp_path), rounds=5)
    look = probe.read(run(probe))
    assert look.place == LOGIN
    assert list(look.latencies) == list(OPERATIONS)
    assert all(0 <= times.p50 <= times.p95 <= times.longest < 10 for times in look.latencies.values())
    assert (look.unfinished, look.left) == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_when_time_is_over_what_was_timed_counts_and_nothing_is_left(tmp_path: Path) -> None:
    probe = ProbeJail(folder=str(tmp_path), rounds=10**9, limit=1.0)
    look = probe.read(run(probe))
    assert list(look.latencies) == list(OPERATIONS)
    assert look.unfinished in {*OPERATIONS, "rmdir"}
    assert jail.too_slow([look], 10.0) == []
    assert list(tmp_path.iterdir()) == []


def test_an_operation_that_never_ends_is_named_and_nobody_waits_for_it(tmp_path: Path) -> None:
    probe = ProbeJail(folder=str(tmp_path), rounds=1, limit=2.0)
    # A pipe without a writer is opened for ever, as is a file on a file system that has gone.
    hanging = (
        probe.command()
        .argv[4]
        .replace("handle = os.open(path, os.O_RDONLY)", "os.mkfifo(path + '-'); os.open(path + '-', os.O_RDONLY)")
    )
    argv = (sys.executable, "-I", "-S", "-c", hanging, *probe.command().argv[5:])
    said = subprocess.run(argv, capture_output=True, timeout=60, check=True)
    look = probe.read(CommandOutput(0, said.stdout))
    assert (look.unfinished, list(look.latencies), look.left) == ("read", ["create", "stat"], "")
    assert look.waited >= 0.4
    assert "login node: read has not ended after" in jail.too_slow([look], 0.3)[0]
    assert list(tmp_path.iterdir()) == []


def test_what_an_earlier_one_had_to_leave_is_removed(tmp_path: Path) -> None:
    node = os.uname().nodename
    old, new, other = (tmp_path / name for name in (f"{PREFIX}{node}-1", f"{PREFIX}{node}-2", f"{PREFIX}elsewhere-1"))
    for folder in (old, new, other):
        folder.mkdir()
    (old / "0~").touch()
    for folder in (old, other):
        os.utime(folder, (time.time() - 7200,) * 2)
    run(ProbeJail(folder=str(tmp_path), rounds=1))
    assert set(tmp_path.iterdir()) == {new, other}


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    probe = ProbeJail(folder=str(tmp_path / "none"), rounds=1)
    with pytest.raises(FileError, match=r"mkdir: .*No such file or directory.*see the folder"):
        probe.read(run(probe))


def test_a_login_node_without_python() -> None:
    with pytest.raises(FileError, match="there is no python3"):
        ProbeJail().read(CommandOutput(127, b"", b"sh: 1: exec: python3: not found"))


def test_what_nodes_answer() -> None:
    entries = {
        "worker-0 0 create 0.100000 0.200000 0.300000\ndone",
        "worker-1 1 srun: error: Unable to allocate resources: Requested nodes are busy\n",
        "worker-2 0 create 0.1 0.2 0.3\nstopped stat 28.500000 /root/.soperator-jail-check-worker-2-7",
        "worker-3 124 srun: Force Terminated",
        "worker-4 0 create 0.1 0.2 0.3\nstopped stat 28.500000 ",
    }
    probe = ProbeJailOnNodes(nodes=tuple(f"worker-{number}" for number in range(5)), limit=30, patience=30)
    looks = probe.read(CommandOutput(0, "".join(f"{entry}\0" for entry in entries).encode()))
    well, busy, hung, _, clean = looks
    assert well == JailLook("worker-0", {"create": Latency(0.1, 0.2, 0.3)})
    assert busy.missed == "srun: error: Unable to allocate resources: Requested nodes are busy"
    assert (hung.unfinished, hung.waited) == ("stat", 28.5)
    assert clean.left == ""
    assert jail.too_slow([well, busy], 0.2) == []
    assert jail.too_slow(looks, 0.5) == [
        "worker-2: stat has not ended after 28.5 s; /root/.soperator-jail-check-worker-2-7 is left behind, and is "
        "removed by a later check",
        "worker-3: start of a process has not ended after 70 s",
        "worker-4: stat has not ended after 28.5 s",
    ]
    assert "worker-1    not measured: srun: error" in jail.table(looks)
    assert list(jail.described(looks)) == ["worker-0", "worker-2", "worker-3", "worker-4"]


def test_nobody_waits_longer_than_all_nodes_may_take() -> None:
    few, many = (ProbeJailOnNodes(nodes=tuple(f"w{n}" for n in range(count))).command() for count in (32, 33))
    assert many.timeout == 2 * few.timeout
