"""Figures of checks: what is read of what a job prints, what is kept, and which node is slow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone

import pytest
from airflow.sdk import Variable

from airflow_provider_soperator.health.assessment import HealthQuery, Observations, told, unclear
from airflow_provider_soperator.health.figures import (
    PATTERNS,
    Kept,
    check_patterns,
    figures_in,
    keep_figures,
    kept_figures,
    slower,
    with_run,
)
from airflow_provider_soperator.slurm.cluster_records import Node
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.soperator.workloads import Host, Pod

NIGHT = datetime(2026, 11, 1, 2, tzinfo=timezone.utc)
PRINTED = """\
# nThread 1 nGpus 8 minBytes 536870912 maxBytes 8589934592 step: 2(factor) warmup iters: 1 iters: 20
   536870912     134217728     float     sum      -1   1953.1  274.88  481.04      0   1951.2  275.15  481.51      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 481.275
#
"""


def nights(*runs: Mapping[str, float], figure: str = "busbw") -> Kept:
    """What is kept after as many nights, of which each has a value of each node."""
    kept: Kept = {}
    for number, run in enumerate(runs):
        values = {node.replace("_", "-"): {figure: value} for node, value in run.items()}
        kept = with_run(kept, NIGHT + timedelta(days=number), values)
    return kept


def found(kept: Kept) -> dict[str, str]:
    return {one.node: one.what for one in slower("nccl", kept, 0.1)}


def test_figures_are_read_of_what_a_job_prints() -> None:
    assert figures_in(PRINTED, PATTERNS) == {"busbw": 481.275}
    assert figures_in("Unsupported platform\n", PATTERNS) == {}
    assert figures_in("Avg bus bandwidth : 1.2.3 GB/s", PATTERNS) == {}
    assert figures_in("lat 3 us\nlat 4 us\n", {"lat_us": r"lat (\d+) us"}) == {"lat_us": 4.0}


@pytest.mark.parametrize(
    ("pattern", "says"),
    [("busbw", "needs one group"), ("(a)(b)", "needs one group")],
)
def test_what_is_no_expression_with_a_number_is_refused(pattern: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_patterns({"busbw": pattern})


def test_a_node_that_is_slower_than_before_is_found_with_the_numbers() -> None:
    usual = {"worker_0": 480.0}
    assert found(nights(usual, usual, usual, {"worker_0": 440.0})) == {}
    slow = nights(usual, usual, usual, {"worker_0": 310.0})
    assert found(slow) == {"worker-0": "busbw of nccl was 310: 35% less than 480, the median in its 3 runs before"}
    # Nor is a run the newest by being kept last.
    assert found(with_run(slow, NIGHT - timedelta(days=1), {"worker-0": {"busbw": 480.0}})).keys() == {"worker-0"}
    # Two runs tell nothing yet; and what has been slow is not slow any more.
    assert found(nights(usual, usual, {"worker_0": 310.0})) == {}
    assert found(nights(usual, usual, usual, {"worker_0": 310.0}, usual)) == {}


def test_a_node_that_is_slower_than_its_neighbours_is_found_at_the_first_run() -> None:
    run = {"worker_0": 480.0, "worker_1": 482.0, "worker_2": 300.0, "worker_3": 479.0}
    assert found(nights(run)) == {
        "worker-2": "busbw of nccl was 300: 37% less than 479.5, the median of 4 nodes in this run"
    }
    # Other machines are not their neighbours, and nor is what others had in another night.
    others = {"old_0": 90.0, "old_1": 91.0}
    assert set(found(nights({**run, **others}))) == {"worker-2"}
    assert found(nights(run, {"worker_2": 300.0})) == {}


def test_of_times_less_is_better() -> None:
    usual = {"worker_0": 0.010}
    kept = nights(usual, usual, usual, {"worker_0": 0.030}, figure="create_seconds")
    assert "200% more than 0.01" in found(kept)["worker-0"]
    assert found(nights(usual, usual, usual, {"worker_0": 0.001}, figure="create_seconds")) == {}


def test_the_oldest_runs_of_a_node_are_forgotten_and_those_of_others_stay() -> None:
    kept = nights({"worker_9": 1.0}, *({"worker_0": float(number)} for number in range(100)))
    assert [values["busbw"] for _, values in kept["worker-0"]] == [float(number) for number in range(70, 100)]
    assert len(kept["worker-9"]) == 1
    # A thousand nodes fit into a Variable.
    assert len(json.dumps(kept["worker-0"])) < 1200


def test_they_are_kept_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, str] = {}
    monkeypatch.setattr(Variable, "get", lambda key, default: kept.get(key, default))
    monkeypatch.setattr(Variable, "set", kept.__setitem__)
    for value in (480, 481, 479):
        keep_figures("nccl", {"worker-0": {"busbw": value}, "worker-1": {}})
    words = "busbw of nccl was 300: 38% less than 480, the median in its 3 runs before"
    assert keep_figures("nccl", {"worker-0": {"busbw": 300, "other": 1}}) == {"worker-0": words}
    # Those that this run has not measured are in it no more than before.
    assert keep_figures("nccl", {"worker-1": {"busbw": 480}}) == {}
    assert list(kept) == ["soperator_figures_nccl"]
    assert found(kept_figures("nccl")).keys() == {"worker-0"}
    assert kept_figures("another") == {}
    # A person has deleted the runs of a machine that is gone.
    kept["soperator_figures_nccl"] = json.dumps({**json.loads(kept["soperator_figures_nccl"]), "worker-0": []})
    assert found(kept_figures("nccl")) == {}


def test_slow_nodes_are_findings_like_others_unless_they_are_off() -> None:
    usual = {"worker_0": 480.0, "worker_1": 480.0, "gone_0": 480.0}
    kept = nights(usual, usual, usual, dict.fromkeys(usual, 300.0))
    nodes = [
        Node(name="worker-0", state=NodeState.parse("IDLE+CLOUD")),
        Node(name="worker-1", state=NodeState.parse("IDLE+CLOUD+POWERED_DOWN")),
    ]
    ill = told(HealthQuery(kinds=("slow",)).unhealthy(nodes, Observations(figures={"nccl": kept})))
    assert list(ill) == ["worker-0"]
    [finding] = ill["worker-0"]
    assert (finding["kind"], finding["source"], finding["takes_machine"]) == ("slow", "checks", False)
    assert finding["since"] == (NIGHT + timedelta(days=3)).isoformat()
    # It is another machine that was measured.
    for come, is_slow in ((timedelta(days=2), True), (timedelta(days=4), False)):
        pods = {"worker-0": Pod("Running", True, Host("computeinstance-2", NIGHT + come))}
        seen = Observations(kubernetes=pods, figures={"nccl": kept})
        assert bool(HealthQuery(kinds=("slow",)).unhealthy(nodes, seen)) is is_slow
    patient = Observations(figures={"nccl": kept}, tolerance=0.5)
    assert HealthQuery().unhealthy(nodes, patient) == {}


def test_a_figure_that_is_no_number_is_not_called_slow() -> None:
    run = {"worker_0": 480.0, "worker_1": 482.0, "worker_2": 481.0, "worker_3": float("nan")}
    assert found(nights(run)) == {}


def test_a_check_of_which_nothing_is_kept_is_told() -> None:
    seen = Observations(figures={"nccl": nights({"worker-0": 480}), "ncll": {}})
    assert unclear((), seen) == "no figures are kept of the checks ncll, so they say nothing of any node"
