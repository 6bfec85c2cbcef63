"""Runs of programs that outlive whoever has started them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from airflow_provider_soperator.terraform import runs
from airflow_provider_soperator.terraform.runs import Run, RunRecord
from tests.patience import PATIENCE


def until(holds: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


def ended(folder: Path, kind: str) -> Run:
    run = runs.start(folder, kind, ["/bin/true"], folder.parent, {})
    until(lambda: not run.is_running, "it does not end")
    return run


def test_old_runs_go_but_not_the_one_whose_plan_waits_for_a_lock(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    useless, planned = ended(folder, "plan"), ended(folder, "plan")
    (planned.folder / runs.PLAN).touch()
    for _ in range(runs._KEPT + 1):
        ended(folder, "apply")
    assert planned.folder.exists()
    assert not useless.folder.exists()


#: Terraform with a provider, which has its input, as go-plugin passes it on.
WITH_PROVIDER = """
import subprocess, time
subprocess.Popen(["sleep", "600"])
print("{}", flush=True)
time.sleep(600)
"""


def test_a_provider_that_is_left_when_all_else_was_killed_is_no_run(tmp_path: Path) -> None:
    run = runs.start(tmp_path / "runs", "apply", [sys.executable, "-c", WITH_PROVIDER], tmp_path, {})
    assert run._process is not None
    try:
        until(lambda: (run.folder / "out").read_text() and (run.folder / "beat").exists(), "it does not start")
        assert run.pid is not None
        os.kill(run._process.pid, signal.SIGKILL)
        assert run.is_running, "Terraform goes on without the shell"
        os.kill(run.pid, signal.SIGKILL)

        def is_over() -> bool:
            # As long after the last sign of the shell as others would wait for one, of which one more may come.
            os.utime(run.folder / "beat", (0, 0))
            return not run.is_running and run.was_killed

        until(is_over, "what is left counts as a run, or as one that has ended in good order")
    finally:
        os.killpg(run._process.pid, signal.SIGKILL)


def test_a_run_of_a_task_that_lives_is_not_interrupted_by_one_that_follows_it(tmp_path: Path) -> None:
    run = runs.start(tmp_path / "runs", "apply", ["/bin/sleep", "600"], tmp_path, {})
    assert run._process is not None
    record = run.folder / "record.json"
    try:
        for starter, is_interrupted in ((run._process.pid, False), (2**30, True), (os.getpid(), True)):
            record.write_text(json.dumps({**json.loads(record.read_text()), "starter": starter}))
            follower = Run(run.folder)
            follower.interrupt()
            assert follower.was_interrupted is is_interrupted
    finally:
        os.killpg(run._process.pid, signal.SIGKILL)


def test_a_record_of_a_newer_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    record = RunRecord("apply", ["terraform"], "here", "4026531836", "ann@here", 1795291200.5, 7)
    (tmp_path / "record.json").write_text(json.dumps({**asdict(record), "notes": ["new"]}))
    assert Run(tmp_path).record == record
