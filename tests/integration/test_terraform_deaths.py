"""Terraform when those who started it die, or are told to end: everything is made once, and no state is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_provider_soperator.terraform import runs
from airflow_provider_soperator.terraform.failures import (
    INTERRUPTED,
    STATE_LOCKED,
    STATE_NOT_SAVED,
    TERRAFORM_FAILED,
    UNAUTHENTICATED,
)
from airflow_provider_soperator.terraform.runs import Run
from tests.integration.statekeeper import StateKeeper, state_keeper
from tests.integration.terraforming import STEPS, Bench, Task, needs_terraform, variables, wait_for
from tests.terraform_errors import fails

pytestmark = needs_terraform
STRANGER = {
    "ID": "4711",
    "Who": "somebody@elsewhere",
    "Operation": "OperationTypeApply",
    "Created": "2026-11-22T01:00:00Z",
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for step in STEPS:
        (bench.held / step).unlink(missing_ok=True)
    for run in (run for runs_of in tmp_path.glob("*/runs") for run in runs.earlier(runs_of)):
        wait_for(lambda run=run: not run.is_running, f"{run.folder} does not end")


@pytest.fixture
def keeper(bench: Bench) -> Iterator[StateKeeper]:
    with state_keeper() as keeper:
        bench.env.update(keeper.env)
        yield keeper


def reaches(bench: Bench, step: str) -> Run:
    """The apply that is at work on a step which is held, with all before it in the state."""
    there = bench.home / "training/runs"

    def at_work() -> Run | None:
        latest = next(iter(runs.earlier(there)), None)
        if latest and latest.record.kind == "apply":
            said = (latest.folder / "out").read_text()
            return latest if f'"{step}"].terraform_data.this: Provisioning' in said.replace("\\", "") else None
        return None

    return wait_for(at_work, f"nothing is at work on {step}")  # type: ignore[no-any-return]


def killed_in_apply(bench: Bench, task: Task) -> Run:
    run = reaches(bench, "worker-0")
    task.kill()
    return run


def slain(run: Run) -> None:
    """All of a run, as when a machine is lost."""
    assert run.pid
    os.killpg(os.getpgid(run.pid), signal.SIGKILL)
    wait_for(lambda: run.was_killed, "it lives")


def release_once_followed(bench: Bench, step: str) -> None:
    """Let a step that is held go on once the log says that its apply is followed."""

    def release() -> None:
        try:
            wait_for(lambda: "Following the apply of an earlier try" in str(bench.said), "the apply is not followed")
        finally:
            bench.release(step)

    threading.Thread(target=release).start()


# Deaths


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_try_follows_what_a_dead_worker_has_begun(bench: Bench, sig: signal.Signals) -> None:
    bench.hold("worker-0")
    with bench.task() as task:
        run = reaches(bench, "worker-0")
        task.kill(sig)
    assert run.is_running
    release_once_followed(bench, "worker-0")
    with bench.workspace() as workspace:
        assert bench.made == STEPS
        workspace.init()
        assert workspace.plan(variables()).is_empty
    said = str(bench.said)
    assert "Following the apply of an earlier try, which runs on" in said
    assert "creating module.slurm.terraform_data.this" in said
    # What was done before is not told again.
    assert "creating module.filestore.terraform_data.this" not in said
    assert len(list((bench.home / "training/runs").glob("*-apply"))) == 1


def test_what_has_ended_after_the_worker_is_recognized(bench: Bench) -> None:
    bench.hold("worker-0")
    with bench.task() as task:
        run = killed_in_apply(bench, task)
    bench.release("worker-0")
    wait_for(lambda: run.status is not None, "it does not end")
    bench.workspace().settle()
    assert "has succeeded meanwhile: 5 added" in str(bench.said)
    bench.said.lines.clear()
    bench.workspace().settle()
    assert bench.said.lines == []
    assert bench.provision(bench.workspace()).added == 0
    assert bench.made == STEPS


def test_an_apply_that_died_with_its_worker_is_gone_on_with(bench: Bench) -> None:
    bench.hold("worker-0")
    with bench.task() as task:
        slain(killed_in_apply(bench, task))
    assert bench.state() == ["cluster", "jail"]
    bench.release("worker-0")
    bench.provision(bench.workspace())
    assert bench.made == STEPS
    assert bench.state() == STEPS
    assert "died after 2 of 5 steps" in str(bench.said)
    assert 'It was working on module.node_group["worker-0"].terraform_data.this' in str(bench.said)


def test_an_apply_that_fails_while_it_is_followed(bench: Bench) -> None:
    bench.env.update(STUB_FAIL="worker-0", STUB_WORDS="no luck")
    bench.hold("worker-0")
    with bench.task() as task:
        killed_in_apply(bench, task)
    release_once_followed(bench, "worker-0")
    with fails(TERRAFORM_FAILED, match="no luck"):
        bench.workspace().settle()
    bench.env["STUB_FAIL"] = ""
    bench.provision(bench.workspace())
    assert bench.made == STEPS


def test_a_run_on_another_machine_is_followed_while_it_gives_signs_of_life(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.hold("worker-0")
    with bench.task() as task:
        run = killed_in_apply(bench, task)
    monkeypatch.setattr(runs, "pid_namespace", lambda: "elsewhere")
    wait_for(lambda: (run.folder / "beat").exists(), "it gives no sign of life")
    assert run.is_running
    # Nobody can tell it anything from here.
    assert not run.interrupt()
    monkeypatch.setattr(runs, "_SILENCE", -1.0)
    assert run.was_killed


# Orders to end


def test_an_interrupted_apply_leaves_a_state_that_can_be_gone_on_with(bench: Bench) -> None:
    bench.hold("worker-0")
    workspace = bench.workspace()
    told: list[str] = []

    def interrupt() -> None:
        reaches(bench, "worker-0")
        # On a busy machine Terraform may come as far before the task looks at it.
        wait_for(lambda: 'creating module.node_group["worker-0"]' in str(bench.said), "the task does not follow it")
        told.append(workspace.interrupt())

    thread = threading.Thread(target=interrupt)
    thread.start()
    with fails(INTERRUPTED, match=r"after 2 of 5 steps.*the next try continues from there"):
        bench.provision(workspace)
    thread.join()
    assert "Terraform finishes what it has begun, saves the state and releases its lock" in told[0]
    assert bench.state() == ["cluster", "jail"]
    assert not (bench.home / "training/recipe/soperator/.terraform.tfstate.lock.info").exists()
    with fails(INTERRUPTED, match="was not started"):
        workspace.plan(variables())
    bench.release("worker-0")
    bench.provision(bench.workspace())
    assert bench.made == STEPS


# Locks and lost states


def test_a_lock_of_others_is_waited_for_and_then_reported(bench: Bench, keeper: StateKeeper) -> None:
    keeper.lock = STRANGER
    with fails(STATE_LOCKED, match=r"somebody@elsewhere holds .* for apply since 2026.*`terraform force-unlock 4711`"):
        bench.provision(bench.workspace(backend=keeper.backend))
    assert keeper.lock == STRANGER

    def ends() -> None:
        wait_for(lambda: "waiting for at most 60 s" in str(bench.said), "nobody waits")
        keeper.lock = None

    thread = threading.Thread(target=ends)
    thread.start()
    bench.provision(bench.workspace(backend=keeper.backend, lock_timeout=60.0))
    thread.join()
    assert bench.made == STEPS
    assert keeper.lock is None


def test_a_wait_for_a_lock_is_interrupted(bench: Bench, keeper: StateKeeper) -> None:
    keeper.lock = STRANGER
    workspace = bench.workspace(backend=keeper.backend, lock_timeout=3600.0)

    def interrupt() -> None:
        # The first run finds the lock, the second one waits for it.
        wait_for(lambda: len(list((bench.home / "training/runs").glob("*/pid"))) == 2, "nobody waits")
        workspace.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with fails(INTERRUPTED, match="terraform plan was interrupted"):
        bench.provision(workspace)
    thread.join()
    assert keeper.lock == STRANGER


def test_the_lock_of_a_dead_run_of_ours_is_taken_away(bench: Bench, keeper: StateKeeper) -> None:
    bench.hold("worker-0")
    with bench.task(backend=keeper.backend) as task:
        slain(killed_in_apply(bench, task))
    ours = keeper.lock
    assert ours
    bench.release("worker-0")
    # One that was made after its last sign of life is somebody's who may be at work.
    later = datetime.now(timezone.utc) + timedelta(seconds=5)
    keeper.lock = {**ours, "ID": "4711", "Created": later.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    with fails(STATE_LOCKED, match="4711"):
        bench.provision(bench.workspace(backend=keeper.backend))
    keeper.lock = ours
    bench.provision(bench.workspace(backend=keeper.backend))
    assert "is a run of ours that has died: removing the lock" in str(bench.said)
    assert keeper.lock is None
    # The backend has what was made within the last seconds only if it was told.
    assert set(bench.made) == set(STEPS)


def test_an_expired_key_of_the_backend(bench: Bench, keeper: StateKeeper) -> None:
    keeper.refusal_of_all = "ExpiredToken"
    with fails(UNAUTHENTICATED, match=r"ExpiredToken.*AWS_ACCESS_KEY_ID"):
        bench.provision(bench.workspace(backend=keeper.backend))


def test_a_state_that_could_not_be_saved_is_saved_by_the_next_try(bench: Bench, keeper: StateKeeper) -> None:
    workspace = bench.workspace(backend=keeper.backend)
    with workspace:
        workspace.init()
        plan = workspace.plan(variables())
        keeper.refusal = "AccessDenied"
        with fails(STATE_NOT_SAVED, match=r"`terraform state push errored\.tfstate`"):
            workspace.apply(plan)
    assert keeper.resources == []
    with fails(STATE_NOT_SAVED, match="until then nothing is changed"):
        bench.provision(bench.workspace(backend=keeper.backend))
    keeper.refusal = ""
    bench.provision(bench.workspace(backend=keeper.backend))
    assert "could not save to the backend" in str(bench.said)
    assert bench.made == STEPS
    assert len(keeper.resources) == 5
