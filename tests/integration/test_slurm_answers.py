"""What a real Slurm answers to the requests of the pure core, on both versions: read whole, and told apart."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest

from airflow_provider_soperator.slurm import errors, nodes
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.nodes import DrainReason
from airflow_provider_soperator.slurm.records import AccountingJob, Job, Node
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    Command,
    CommandOutput,
    CommentNodes,
    CreateReservation,
    DeleteReservation,
    Drain,
    HoldJobs,
    JobDetail,
    ListJobs,
    ListNodes,
    ListPartitions,
    ListReservations,
    MintToken,
    NodeDetail,
    Ping,
    PowerDown,
    PowerDownMode,
    PowerUp,
    ReleaseJobs,
    Request,
    RequeueJobs,
    ResumeNodes,
    SchedulerDiagnostics,
    ShowConfig,
    ShowRights,
    Submit,
    TopJobs,
    Undrain,
    UpdateJob,
    UpdateReservation,
)
from airflow_provider_soperator.slurm.requests.accounting import name_in_accounting
from airflow_provider_soperator.slurm.states import JobBase
from tests.integration.cluster import LOGIN, Cluster

T = TypeVar("T")

#: Everything that has broken a parser of somebody's: separators, line breaks, formats, shells, other alphabets.
HOSTILE = "a|b,c'\"\n~x\t$(id)`; é😀 %s %n = State=RUNNING\\ "


def answer(cluster: Cluster, command: Command, user: str = "root") -> CommandOutput:
    argv = ["runuser", "-u", user, "--", *command.argv] if user != "root" else list(command.argv)
    ran = subprocess.run(
        cluster.sandbox.init.enter(LOGIN, argv),
        input=command.stdin,
        capture_output=True,
        timeout=command.timeout,
        check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "HOME": "/root", **command.environment},
    )
    return CommandOutput(ran.returncode, ran.stdout, ran.stderr)


def ask(cluster: Cluster, request: Request[T], user: str = "root") -> T:
    return request.read(answer(cluster, request.command(), user))


def submit(cluster: Cluster, **fields: Any) -> JobId:
    return ask(cluster, Submit(BatchJob(command="true", output="/root/%j.out", **fields)))


def sbatch(cluster: Cluster, *options: str | bytes) -> JobId:
    """Submit what a BatchJob would refuse, and other people's jobs may have."""
    words = ("sbatch", "--parsable", "--hold", "--output=/root/%j.out", *options, "--wrap=true")
    return JobId.parse(answer(cluster, Command(words)).text)  # type: ignore[arg-type]


def the_job(cluster: Cluster, job: JobId) -> Job:
    (found,) = ask(cluster, ListJobs(ids=(job,)))
    return found


def accounted(cluster: Cluster, **asked: Any) -> tuple[AccountingJob, ...]:
    """What accounting knows, once it knows that all of it has ended."""

    def ended() -> tuple[AccountingJob, ...]:
        jobs = ask(cluster, Accounting(**asked))
        return jobs if all(job.state.is_finished for job in jobs) else ()

    return cluster.wait("accounting knows the end", ended)


def the_node(cluster: Cluster, name: str = "worker-1") -> Node:
    (found,) = ask(cluster, ListNodes((name,)))
    return found


def wait_node(cluster: Cluster, is_so: Callable[[Node], bool], name: str = "worker-1") -> Node:
    return cluster.wait(f"{name} {is_so.__name__}", lambda: (node := the_node(cluster, name)) and is_so(node) and node)  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------------------ jobs


def test_hostile_names_come_back_as_they_were_sent(cluster: Cluster) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    names = (HOSTILE, "ü" * 120, "plain")
    sent = {sbatch(cluster, f"--job-name={name}", f"--comment={HOSTILE}"): name for name in names}
    jobs = {job.id: job for job in ask(cluster, ListJobs(ids=tuple(sent), mine=True))}
    assert {job_id: job.name for job_id, job in jobs.items()} == sent
    assert {job.comment for job in jobs.values()} == {HOSTILE}
    assert all(job.submitted and job.submitted > before for job in jobs.values())
    for job_id, name in sent.items():
        assert [job.id for job in ask(cluster, ListJobs(names=(name,), mine=True))] == [job_id]
    ask(cluster, CancelJobs(ids=tuple(sent)))
    by_id = {job.id: job for job in accounted(cluster, ids=tuple(sent))}
    assert {job_id: job.name for job_id, job in by_id.items()} == {
        job_id: name_in_accounting(name) for job_id, name in sent.items()
    }
    assert all(job.state.base is JobBase.CANCELLED and job.state.cancelled_by == 0 for job in by_id.values())
    for job_id, name in sent.items():
        assert job_id in {job.id for job in ask(cluster, Accounting(names=(name,), since=before))}


def test_bytes_that_are_no_text_break_nothing(cluster: Cluster) -> None:
    job = the_job(cluster, sbatch(cluster, b"--job-name=a\xff\n\xfeb"))
    assert job.name == "a\\xff\n\\xfeb"
    ask(cluster, CancelJobs(ids=(job.id,)))
    (gone,) = accounted(cluster, ids=(job.id,))
    # slurmctld itself has put question marks in their place.
    assert gone.name == "a?\n?b"


def test_elements_of_an_array_wait_as_one_and_end_one_by_one(cluster: Cluster) -> None:
    array = submit(cluster, array="0-8:4%2", hold=True, name="fan")
    waiting = the_job(cluster, array)
    assert list(waiting.id.indices()) == [0, 4, 8]
    assert waiting.array_job == array.job
    assert waiting.is_held
    element = JobId(array.job, element=4)
    assert the_job(cluster, element).id.covers(element)
    # In the notation of squeue, which scancel and scontrol do not read.
    ask(cluster, HoldJobs((waiting.id,)))
    ask(cluster, ReleaseJobs((waiting.id,)))
    ended = cluster.wait("all have ended", lambda: len(found := accounted(cluster, ids=(array,))) == 3 and found)
    assert {job.id.element for job in ended} == {0, 4, 8}
    assert all(job.state.succeeded for job in ended)
    (one,) = ask(cluster, Accounting(ids=(element,)))
    assert one.id == element


def test_a_long_array_of_odd_elements_is_not_cut_short(cluster: Cluster) -> None:
    odd = sorted({n * n for n in range(60)})
    array = submit(cluster, array=",".join(map(str, odd)), hold=True)
    waiting = the_job(cluster, array)
    assert list(waiting.id.indices()) == odd
    ask(cluster, CancelJobs(ids=(waiting.id,)))
    assert all(job.state.base is JobBase.CANCELLED for job in ask(cluster, ListJobs(ids=(array,))))


def test_parts_of_a_heterogeneous_job(cluster: Cluster) -> None:
    said = cluster.run(
        "sbatch", "--parsable", "--hold", "--job-name=first", "--output=/root/%j.out", "--wrap=true",
        ":", "--job-name=second",
    )  # fmt: skip
    whole = JobId.parse(said)
    parts = sorted(ask(cluster, ListJobs(ids=(whole,))), key=lambda job: job.id)
    assert [(job.id.part, job.name) for job in parts] == [(0, "first"), (1, "second")]
    assert parts[1].raw_id == whole.job + 1
    with pytest.raises(errors.WholeJobOnly):
        ask(cluster, CancelJobs(ids=(parts[1].id,)))
    ask(cluster, CancelJobs(ids=(whole,)))
    ended = cluster.wait("both are cancelled", lambda: _all_finished(ask(cluster, ListJobs(ids=(whole,)))))
    assert len(ended) == 2


def _all_finished(jobs: tuple[Job, ...]) -> tuple[Job, ...]:
    return jobs if jobs and all(job.state.is_finished for job in jobs) else ()


def test_what_accounting_finds_without_an_id(cluster: Cluster) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    name = f"seek-{before.timestamp()}"
    held, tomorrow = submit(cluster, name=name, hold=True), submit(cluster, name=name, begin=timedelta(days=2))
    dependent = submit(cluster, name=name, extra_args=[f"--dependency=afterok:{held}"])
    ran = submit(cluster, name=name)
    every = (held, tomorrow, dependent, ran)
    assert {job.id for job in ask(cluster, ListJobs(names=(name,)))} == set(every)
    cluster.wait("one has run", lambda: the_job(cluster, ran).state.is_finished)
    found = cluster.wait("it is accounted for", lambda: ask(cluster, Accounting(names=(name,), since=before)))
    # The others have never been eligible: only the queue finds them by name.
    assert [job.id for job in found] == [ran]
    ask(cluster, CancelJobs(ids=every))
    accounted(cluster, ids=every)
    assert {job.id for job in ask(cluster, Accounting(names=(name,), since=before))} == set(every)
    assert ask(cluster, Accounting(names=(name,), since=datetime.now(timezone.utc) + timedelta(hours=1))) == ()


def test_runs_before_a_requeue_are_counted_and_kept(cluster: Cluster) -> None:
    script = "touch /root/begun-$SLURM_JOB_ID; test $SLURM_RESTART_COUNT || sleep 300"
    job = ask(cluster, Submit(BatchJob(command=script, output="/root/%j.out", requeue=True)))
    cluster.wait("its script runs", lambda: cluster.try_run("test", "-e", f"/root/begun-{job}").returncode == 0)
    ask(cluster, RequeueJobs((job,), hold=True))
    held = cluster.wait("it waits again", lambda: (found := the_job(cluster, job)).state.is_pending and found)
    assert held.restarts == 1
    assert held.is_held
    assert held.reason
    # It would wait two minutes before its second run.
    ask(cluster, UpdateJob(job, {"StartTime": "now"}))
    ask(cluster, ReleaseJobs((job,)))
    (ended,) = cluster.wait(
        "it has run twice",
        lambda: (found := accounted(cluster, ids=(job,), steps=True)) and found[0].restarts and found,
    )
    assert ended.restarts == 1
    assert [run.state.is_finished for run in ended.earlier_runs] == [False]
    assert [step.id.step for step in ended.steps] == ["batch"]
    assert [step.id.step for step in ended.earlier_runs[0].steps] == ["batch"]


def test_how_jobs_end(cluster: Cluster) -> None:
    bodies = {"exit 3": "exit code 3", "kill -9 $$": "killed by SIGKILL", "sh -c 'kill -11 $$'": "SIGSEGV"}
    jobs = {ask(cluster, Submit(BatchJob(command=body, output="/root/%j.out"))): said for body, said in bodies.items()}
    ended = {job.id: job for job in accounted(cluster, ids=tuple(jobs))}
    in_queue = {job.id: job for job in ask(cluster, ListJobs(ids=tuple(jobs)))}
    assert set(ended) == set(in_queue) == set(jobs)
    for job_id, said in jobs.items():
        assert ended[job_id].state.base is in_queue[job_id].state.base is JobBase.FAILED
        assert said in str(in_queue[job_id].exit_code)
    assert [job.exit_code.code for job in in_queue.values() if job.exit_code.code > 128] == [139]
    # sacct used to hide that it was a signal.
    segfault = 139 - 128 * (cluster.settings.slurm == "24.11")
    assert {job.exit_code.code for job in ended.values()} == {3, 0, segfault}


def test_fields_of_a_job_are_changed_and_read(cluster: Cluster) -> None:
    job = submit(cluster, hold=True, time_limit=timedelta(hours=2), gpus_per_node=2)
    ask(cluster, UpdateJob(job, {"Comment": HOSTILE, "TimeLimit": "7", "Name": "--x=y"}))
    found = the_job(cluster, job)
    assert (found.comment, found.time_limit, found.name) == (HOSTILE, timedelta(minutes=7), "--x=y")
    assert "gres/gpu=2" in found.tres
    assert f"JobId={job}" in ask(cluster, JobDetail(job))


def test_cancelling_jobs_that_are_gone_is_no_error(cluster: Cluster) -> None:
    job = submit(cluster)
    accounted(cluster, ids=(job,))
    ask(cluster, CancelJobs(ids=(job, JobId(999_999), JobId(999_998))))
    ask(cluster, CancelJobs(ids=(JobId(999_999),)))
    assert ask(cluster, ListJobs(ids=(JobId(999_999),))) == ()
    assert ask(cluster, ListJobs(ids=(JobId(999_999), JobId(999_998)))) == ()
    assert ask(cluster, Accounting(ids=(JobId(999_999),))) == ()


# ----------------------------------------------------------------------------------------------------------- nodes


def test_a_node_through_its_power_states(cluster: Cluster) -> None:
    assert nodes.is_off(the_node(cluster))
    ask(cluster, PowerUp(("worker-1",)))
    wait_node(cluster, nodes.is_coming_up)
    wait_node(cluster, nodes.is_usable)
    job = cluster.held_job("--nodelist=worker-1", "--gpus-per-node=8")
    busy = wait_node(cluster, nodes.is_busy)
    assert nodes.is_usable(busy)
    cluster.wait("its GPUs are taken", lambda: the_node(cluster).gpus_used == 8)

    reason = DrainReason("shifts/night", 'lent until 08:00; "quoted", a = b')
    ask(cluster, PowerDown(("worker-1",), PowerDownMode.ASAP, str(reason)))
    going = the_node(cluster)
    assert nodes.is_going_off(going)
    assert nodes.is_draining(going)
    assert nodes.is_ours(going, "shifts/night")
    assert DrainReason.parse(going.reason) == reason
    assert going.reason_user == "root"
    assert going.reason_since is not None
    cluster.let_go(job)
    off = wait_node(cluster, nodes.is_off)
    # slurmctld has cleared the drain that came with it.
    assert not nodes.is_drained(off)

    ask(cluster, Drain(("worker-1",), str(reason)))
    kept = the_node(cluster)
    assert nodes.is_off(kept)
    assert nodes.is_drained(kept)
    assert nodes.is_ours(kept)
    ask(cluster, Undrain(("worker-1",)))
    assert not nodes.is_ours(the_node(cluster))


def test_a_forced_power_down_takes_the_job_with_it(cluster: Cluster) -> None:
    cluster.power_up("worker-1")
    job = JobId.parse(cluster.held_job("--nodelist=worker-1", "--no-requeue"))
    cluster.wait("it runs", lambda: the_job(cluster, job).state.base is JobBase.RUNNING)
    ask(cluster, PowerDown(("worker-1",), PowerDownMode.FORCE))
    wait_node(cluster, nodes.is_off)
    ended = cluster.wait("it has ended", lambda: (found := the_job(cluster, job)).state.is_finished and found)
    assert not ended.state.succeeded


def test_a_node_that_does_not_boot(cluster: Cluster) -> None:
    cluster.fault("node-no-boot", node="worker-1")
    ask(cluster, PowerUp(("worker-1",)))
    wait_node(cluster, nodes.is_coming_up)
    wait_node(cluster, nodes.failed_to_resume)
    cluster.fault("clear")
    ask(cluster, PowerDown(("worker-1",), PowerDownMode.FORCE))
    wait_node(cluster, lambda node: nodes.is_off(node) and not nodes.failed_to_resume(node))


def test_soperators_reasons_are_known_and_not_ours(cluster: Cluster) -> None:
    ask(cluster, Drain(("worker-0",), "[user_problem] boot_disk_full: 95% [hc_program]"))
    drained = the_node(cluster, "worker-0")
    known = nodes.explain(drained.reason)
    assert known is not None
    assert known.heals
    assert not nodes.is_ours(drained)
    assert not nodes.is_usable(drained)
    ask(cluster, ResumeNodes(("worker-0",)))
    wait_node(cluster, nodes.is_usable, "worker-0")


def test_all_nodes_and_partitions(cluster: Cluster) -> None:
    found = {node.name: node for node in ask(cluster, ListNodes())}
    shown = cluster.run("scontrol", "show", "hostnames", "worker-[0-3],worker-cpu-[0-1]").split()
    assert sorted(found) == shown
    worker = found["worker-0"]
    assert (worker.partitions, worker.gpus, worker.gpus_used) == (("hidden", "main"), cluster.settings.gpus, 0)
    assert worker.version.startswith(cluster.settings.slurm)
    assert found["worker-cpu-0"].gpus == 0
    partitions = {partition.name: partition for partition in ask(cluster, ListPartitions())}
    assert partitions["main"].is_default
    assert partitions["hidden"].is_hidden
    assert partitions["main"].total_nodes == len(found)
    ask(cluster, CommentNodes(("worker-0",), 'say "hi" = x'))
    assert the_node(cluster, "worker-0").comment == 'say "hi" = x'
    assert "NodeName=worker-0" in ask(cluster, NodeDetail("worker-0"))


# ---------------------------------------------------------------------------------------------------- reservations


def test_the_life_of_a_reservation(cluster: Cluster) -> None:
    start = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(hours=1)
    asked = CreateReservation(
        name="airflow-night",
        nodes=("worker-0", "worker-1"),
        start=start,
        end=start + timedelta(hours=8),
        users=("root", "alice"),
        comment="for the night; a=b State=ACTIVE",
    )
    try:
        assert ask(cluster, asked) == "airflow-night"
        (found,) = ask(cluster, ListReservations())
        assert (found.name, found.nodelist, found.users) == ("airflow-night", "worker-[0-1]", ("root", "alice"))
        assert (found.start, found.end, found.is_active) == (start, start + timedelta(hours=8), False)
        assert {"MAINT", "IGNORE_JOBS"} <= found.flags
        assert found.comment == asked.comment
        with pytest.raises(errors.ReservationConflict):
            ask(cluster, asked)
        ask(cluster, UpdateReservation(name="airflow-night", end=start + timedelta(hours=2), flags=("-MAINT",)))
        ask(cluster, UpdateReservation(name="airflow-night", nodes=("worker-1",)))
        (changed,) = ask(cluster, ListReservations())
        assert (changed.end, changed.nodelist) == (start + timedelta(hours=2), "worker-1")
        assert "MAINT" not in changed.flags
        assert "airflow-night" in submit_held(cluster, reservation="airflow-night").reservation
    finally:
        cluster.run("scancel", "--full", "--state=PENDING", "--user=root")
        gone = ask(cluster, DeleteReservation("airflow-night"))
    assert gone
    assert not ask(cluster, DeleteReservation("airflow-night"))
    assert ask(cluster, ListReservations()) == ()


def submit_held(cluster: Cluster, **fields: Any) -> Job:
    return the_job(cluster, submit(cluster, hold=True, **fields))


# ----------------------------------------------------------------------------------------------------- the cluster


def test_what_the_cluster_says_of_itself(cluster: Cluster) -> None:
    config = ask(cluster, ShowConfig())
    assert config.release == tuple(map(int, cluster.settings.slurm.split(".")))
    assert config.resume_timeout == timedelta(seconds=cluster.settings.resume_timeout)
    assert config.suspend_exc_nodes == "worker-cpu-[0-1]"
    assert config.has_accounting
    assert config.rate_limit is None
    (controller,) = ask(cluster, Ping())
    assert controller.is_up
    before = ask(cluster, SchedulerDiagnostics())
    ask(cluster, ListNodes())
    after = ask(cluster, SchedulerDiagnostics())
    assert after.rpc_count > before.rpc_count
    assert "root" in {rpc.name for rpc in after.rpcs_by_user}
    assert ask(cluster, ShowRights("root")).may_change_nodes
    alice = ask(cluster, ShowRights("alice"))
    assert (alice.is_known, alice.may_change_nodes) == (True, False)
    assert not ask(cluster, ShowRights("nobody-here")).is_known
    assert ask(cluster, MintToken(timedelta(minutes=5), "alice")).count(".") == 2


GONE = (JobId(999_999),)
SOON = datetime.now(timezone.utc) + timedelta(days=1)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (ListNodes(("nope-0",)), errors.UnknownNode),
        (NodeDetail("nope-0"), errors.UnknownNode),
        (PowerUp(("nope-0",)), errors.UnknownNode),
        (PowerDown(("nope-0",), reason="x"), errors.UnknownNode),
        (Drain(("nope-0", "worker-0"), "x"), errors.UnknownNode),
        (JobDetail(*GONE), errors.UnknownJob),
        (HoldJobs(GONE), errors.UnknownJob),
        (RequeueJobs(GONE), errors.UnknownJob),
        (TopJobs(GONE), errors.UnknownJob),
        (UpdateJob(*GONE, {"TimeLimit": "5"}), errors.UnknownJob),
        (Accounting(user="nope", since=SOON), errors.UnknownUser),
        (UpdateReservation(name="nope", end=SOON), errors.UnknownReservation),
        (
            CreateReservation(name="x", nodes=("nope-0",), start=SOON, end=None, users=("root",)),
            errors.UnknownNode,
        ),
        (
            CreateReservation(name="x", nodes=("worker-0",), start=SOON - timedelta(days=9), end=None, users=("root",)),
            errors.ReservationConflict,
        ),
        (MintToken(timedelta(days=-1)), errors.SlurmError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Request) else "",
)
def test_mistakes_have_names(cluster: Cluster, request_: Request[Any], expected: type[Exception]) -> None:
    with pytest.raises(expected):
        ask(cluster, request_)


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"partition": "nope"}, "--partition"),
        ({"reservation": "nope"}, "--reservation"),
        ({"nodelist": "nope-0"}, "--nodelist"),
        ({"constraint": "nope"}, "--constraint"),
        ({"gres": "nope:1"}, "--gres"),
        ({"extra_args": ["--no-such-option"]}, "--no-such-option"),
        ({"extra_args": ["--time=soon"]}, "--time"),
        ({"extra_args": ["--array=0-99999999"]}, "--array"),
        ({"extra_args": ["--dependency=afterok:999999"]}, "--dependency"),
        ({"gpus_per_node": 99}, ""),
    ],
)
def test_what_sbatch_refuses_names_the_option(cluster: Cluster, fields: dict[str, Any], option: str) -> None:
    with pytest.raises(errors.SubmitRefused) as raised:
        submit(cluster, **fields)
    assert raised.value.option == option
    assert not raised.value.retryable


@pytest.mark.parametrize(
    "request_",
    [
        PowerUp(("worker-1",)),
        Drain(("worker-0",), "x"),
        CreateReservation(name="x", nodes=("worker-0",), start=SOON, end=None, users=("alice",)),
        DeleteReservation("nope"),
        MintToken(timedelta(hours=1), "root"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_for_administrators_only(cluster: Cluster, request_: Request[Any]) -> None:
    with pytest.raises(errors.NotPermitted, match="AdminLevel"):
        ask(cluster, request_, user="alice")


def test_jobs_of_others_are_not_ours_to_change(cluster: Cluster) -> None:
    job = submit(cluster, hold=True)
    for request_ in (CancelJobs(ids=(job,)), HoldJobs((job,)), UpdateJob(job, {"Comment": "x"})):
        with pytest.raises(errors.NotPermitted):
            ask(cluster, request_, user="alice")


def test_jobs_that_have_ended_or_wait_are_in_no_state_for_it(cluster: Cluster) -> None:
    ended = submit(cluster)
    accounted(cluster, ids=(ended,))
    with pytest.raises(errors.JobFinished):
        ask(cluster, HoldJobs((ended,)))
    with pytest.raises(errors.InvalidStateTransition):
        ask(cluster, RequeueJobs((submit(cluster, hold=True),)))


def test_accounting_that_does_not_answer(cluster: Cluster) -> None:
    cluster.fault("slurmdbd-down")
    for question in (Accounting(ids=(JobId(1),)), ShowRights("root")):
        with pytest.raises(errors.AccountingUnreachable) as raised:
            ask(cluster, question)
        assert raised.value.retryable


def test_a_controller_that_does_not_answer(cluster: Cluster) -> None:
    cluster.fault("slurmctld-hung")
    for question in (Ping(), ListJobs(mine=True)):
        with pytest.raises(errors.ControllerUnreachable) as raised:
            ask(cluster, question)
        assert raised.value.retryable
