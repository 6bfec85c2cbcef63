"""Runs of programs that outlive whoever has started them."""

from __future__ import annotations

import time
from pathlib import Path

from airflow_provider_soperator.terraform import runs
from airflow_provider_soperator.terraform.runs import Run


def ended(folder: Path, kind: str) -> Run:
    run = runs.start(folder, kind, ["/bin/true"], folder.parent, {})
    deadline = time.monotonic() + 60
    while run.is_running:
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.01)
    return run


def test_old_runs_go_but_not_the_one_whose_plan_waits_for_a_lock(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    useless, planned = ended(folder, "plan"), ended(folder, "plan")
    (planned.folder / runs.PLAN).touch()
    for _ in range(runs._KEPT + 1):
        ended(folder, "apply")
    assert planned.folder.exists()
    assert not useless.folder.exists()
