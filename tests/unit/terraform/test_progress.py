"""Lines for a log from Terraform's events, and the bar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from airflow_provider_soperator.terraform.progress import ApplyProgress

#: What Terraform 1.11 printed when it replaced one resource of the stub, and failed to make another.
EVENTS = [json.loads(line) for line in (Path(__file__).parent / "apply.jsonl").read_text().splitlines()]


def told(events: list[dict[str, Any]], progress: ApplyProgress) -> list[str]:
    return [line for event in events for line in progress.take(event)]


def test_lines_and_counts_of_a_real_apply() -> None:
    progress = ApplyProgress()
    lines = told(EVENTS, progress)
    assert lines == [
        "destroying module.k8s.terraform_data.this",
        "destroyed module.k8s.terraform_data.this in 0:00",
        "creating module.k8s.terraform_data.this",
        "created module.k8s.terraform_data.this in 0:11",
        'creating module.node_group["late-0"].terraform_data.this',
        'FAILED: creating module.node_group["late-0"].terraform_data.this in 0:00',
    ]
    assert (progress.done, progress.total, progress.current) == (2, 3, {})
    (diagnostic,) = progress.diagnostics
    assert diagnostic.is_error
    assert "no luck" in diagnostic.detail
    assert diagnostic.where.startswith('module.node_group["late-0"].terraform_data.this, ../modules/step/main.tf:')


def test_times_are_of_the_zone_that_terraform_runs_in() -> None:
    progress = ApplyProgress()
    event = {"@timestamp": "2026-11-23T15:23:41.576168+09:00", "type": "refresh_start", "hook": {}}
    assert told([event], progress) == []
    assert progress.began == progress.last_sign == 1795415021.576168


def test_no_line_for_what_is_still_creating() -> None:
    still = [event for event in EVENTS if event["type"] == "apply_progress"]
    assert still
    assert told(still, ApplyProgress()) == []


def test_the_bar_names_what_takes_longest() -> None:
    progress = ApplyProgress(total=27, done=12, began=1000.0)
    progress.current = {"a.late": ("create", 1200.0), "a.first": ("create", 1090.0), "a.second": ("delete", 1100.0)}
    assert progress.bar(1220.0) == (
        "[########------------] 12/27 · 3:40 · creating a.first (2:10), destroying a.second (2:00) and 1 more"
    )
    # More than was planned: what Terraform says counts.
    assert ApplyProgress(total=1, done=2, began=1.0).bar(3726.0) == "[####################] 2/2 · 1:02:05"
    assert ApplyProgress().bar(0.0) == "[--------------------] 0/0 · 0:00"
