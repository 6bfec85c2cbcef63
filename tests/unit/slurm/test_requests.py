"""Requests: every value is one word of a command, what cannot be is refused, and answers are read whole."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.slurm import errors, requests
from airflow_provider_soperator.slurm.cluster_records import Association, Node
from airflow_provider_soperator.slurm.errors import InvalidRequest
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.notations import NoDuration
from airflow_provider_soperator.slurm.requests import (
    Accounting,
    CancelJobs,
    CommandOutput,
    CreateReservation,
    DeleteReservation,
    Drain,
    ListJobs,
    ListNodes,
    ListPartitions,
    ListReservations,
    ListUsage,
    MintToken,
    Ping,
    PowerDown,
    PowerDownMode,
    PowerUp,
    ReadClock,
    Request,
    ShowConfig,
    ShowRights,
    ShowTopology,
    UpdateJob,
    UpdateReservation,
)
from airflow_provider_soperator.slurm.requests.accounting import NAME_LENGTH, name_in_accounting
from airflow_provider_soperator.slurm.requests.commands import Table
from airflow_provider_soperator.slurm.states import JobBase, NodeState

parse = JobId.parse
NOW = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)


def printed(table: Table, *rows: dict[str, str]) -> CommandOutput:
    """What a command prints for rows of which only some columns matter."""
    lines = (
        "".join(row.get(column, _EMPTY.get(column, "(null)")) + table.separator for column in table.columns) + "\n"
        for row in rows
    )
    return CommandOutput(0, "".join(lines).encode())


_EMPTY = {
    "exit_code": "0:0",
    "ExitCode": "0:0",
    "TimelimitRaw": "",
    "ElapsedRaw": "0",
    "State": "PENDING",
    "TimeLimit": "1:00:00",
    "TimeUsed": "0:00",
}


def failed(said: str, status: int = 1) -> CommandOutput:
    return CommandOutput(status, b"", said.encode())


# ------------------------------------------------------------------------------------------------------ submitting


def test_a_submission_goes_as_words_and_stdin() -> None:
    command = BatchJob(command=["echo", "it's"], name="a b; $(id)").submission()
    assert command.argv[0] == "sbatch"
    assert "--job-name=a b; $(id)" in command.argv
    assert command.stdin.startswith(b"#!")


# ------------------------------------------------------------------------------------------------------- the queue


def test_one_question_for_any_number_of_jobs() -> None:
    few = ListJobs(ids=(parse("7_1"), parse("7_2"), parse("8")), mine=True).command().argv
    assert "--jobs=7,8" in few
    many = ListJobs(ids=tuple(map(JobId, range(1, 10_001))), mine=True).command().argv
    assert not any(word.startswith("--jobs") for word in many)
    assert max(map(len, many)) < 2000


def test_jobs_are_read() -> None:
    question = ListJobs()
    (job,) = question.read(
        printed(
            question.table,
            {
                "JobArrayId": "7_[1-3%2]",
                "JobId": "7",
                "Name": "a|b\n~c",
                "State": "PENDING",
                "Reason": "Resources",
                "SubmitTime": "1795255200",
                "EligibleTime": "1795258800",
                "StartTime": "N/A",
                "TimeLimit": "UNLIMITED",
                "RestartCnt": "2",
                "tres-alloc": "cpu=1,gres/gpu=8",
            },
        )
    )
    assert (job.id, job.name, job.reason, job.submitted, job.eligible, job.started) == (
        parse("7_[1-3%2]"),
        "a|b\n~c",
        "Resources",
        NOW,
        NOW + timedelta(hours=1),
        None,
    )
    assert job.time_limit is NoDuration.UNLIMITED
    assert (job.restarts, job.comment, job.nodelist) == (2, "", "")


def test_only_jobs_that_were_asked_for_are_answered() -> None:
    question = ListJobs(ids=(parse("7_2"), parse("9")))
    rows = [{"JobArrayId": text} for text in ("7_[1-3]", "7_4", "8", "9+0", "9+1", "10")]
    assert [str(job.id) for job in question.read(printed(question.table, *rows))] == ["7_[1-3]", "9+0", "9+1"]


def test_names_that_squeue_would_take_apart_are_compared_here() -> None:
    plain = ListJobs(names=("train.af-1",))
    assert "--name=train.af-1" in plain.command().argv
    odd = ListJobs(names=("a,b", "train.af-1"))
    assert not any(word.startswith("--name") for word in odd.command().argv)
    rows = [{"JobArrayId": str(n), "Name": name} for n, name in enumerate(("a,b", "a", "b", "train.af-1"), 1)]
    assert [job.id.job for job in odd.read(printed(odd.table, *rows))] == [1, 4]
    endings = ListJobs(name_suffixes=(".af-1",))
    assert [job.id.job for job in endings.read(printed(endings.table, *rows))] == [4]


def test_names_that_exceed_one_word_of_a_command_line_are_filtered_here() -> None:
    # Those of as many mapped tasks, whose DAG, task and run have usual names.
    names = tuple(f"{number:04}.{'n' * 140}" for number in range(1000))
    argv = ListJobs(names=names, mine=True).command().argv
    assert max(map(len, argv)) < 128 * 1024
    assert not any(word.startswith("--name=") for word in argv)
    assert any(word.startswith("--name=") for word in ListJobs(names=names[:500]).command().argv)


def test_a_field_that_cannot_be_read_is_unknown_and_everything_else_is_read() -> None:
    question = ListJobs()
    rows = [{"JobArrayId": "7", "TimeLimit": "odd"}, {"JobArrayId": "8", "StartTime": "9" * 30}, {"JobArrayId": "9"}]
    jobs = question.read(printed(question.table, *rows))
    assert [(job.id.job, job.time_limit, job.started, job.unreadable) for job in jobs] == [
        (7, NoDuration.UNKNOWN, None, ""),
        (8, timedelta(hours=1), None, ""),
        (9, timedelta(hours=1), None, ""),
    ]


@pytest.mark.parametrize("question", [ListJobs(ids=(parse("7_3"), JobId(8))), Accounting(ids=(parse("7_3"), JobId(8)))])
def test_a_row_whose_end_cannot_be_judged_is_marked_and_others_are_read(question: ListJobs | Accounting) -> None:
    id_column, _, *_ = question.table.columns
    code_column = "exit_code" if isinstance(question, ListJobs) else "ExitCode"
    # Slurm has cut the first list, and the last two rows are of nobody who is asked for.
    rows = [
        {id_column: "7_[1-3,...]"},
        {id_column: "8", code_column: "odd"},
        {id_column: "9", code_column: "odd"},
        {id_column: "10_[1-3,...]"},
    ]
    first, second = question.read(printed(question.table, *rows))
    assert (first.id, second.id) == (JobId(7), JobId(8))
    assert (id_column in first.unreadable, code_column in second.unreadable) == (True, True)


@pytest.mark.parametrize("question", [ListJobs(ids=(JobId(7),)), Accounting(ids=(JobId(7),))])
def test_a_row_that_may_be_of_any_job_is_an_error(question: ListJobs | Accounting) -> None:
    with pytest.raises(errors.UnreadableAnswer, match="expected a job id, got 'job seven'"):
        question.read(printed(question.table, {question.table.columns[0]: "job seven"}))


def test_a_single_job_that_is_gone_is_no_error() -> None:
    question = ListJobs(ids=(JobId(7),))
    assert question.read(failed("slurm_load_jobs error: Invalid job id specified")) == ()
    with pytest.raises(errors.ControllerUnreachable):
        question.read(failed("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"))


def test_nobody_asks_for_no_job() -> None:
    for question in (ListJobs(ids=()), CancelJobs(ids=()), Accounting(ids=()), requests.HoldJobs(())):
        with pytest.raises(InvalidRequest):
            question.command()


def test_gone_jobs_are_no_error_to_cancel() -> None:
    gone = "scancel: error: Kill job error on job id 7: Invalid job id specified\n"
    ended = "scancel: error: Kill job error on job id 8: Job/step already completing or completed\n"
    theirs = "scancel: error: Kill job error on job id 9: Access/permission denied\n"
    question = CancelJobs(ids=(JobId(7), JobId(8), JobId(9)))
    question.read(failed(gone + ended))
    with pytest.raises(errors.NotPermitted, match="job id 9") as raised:
        question.read(failed(gone + ended + theirs, 210))
    assert "job id 7" not in raised.value.said
    with pytest.raises(errors.SlurmError):
        question.read(failed(""))


def test_signals_are_signals() -> None:
    argv = CancelJobs(ids=(JobId(7),), signal="SIGUSR1").command().argv
    assert argv == ("scancel", "--signal=SIGUSR1", "7")
    for nonsense in ("-9", "usr1", "KILL 1", "$(id)"):
        with pytest.raises(InvalidRequest):
            CancelJobs(ids=(JobId(7),), signal=nonsense).command()


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50))
def test_a_job_field_is_one_word_whatever_is_in_it(value: str) -> None:
    assert UpdateJob(JobId(7), {"Comment": value}).command().argv[3:] == (f"Comment={value}",)


def test_fields_of_jobs_are_names() -> None:
    for nonsense in ("Comment=x NodeList", "", "--x"):
        with pytest.raises(InvalidRequest):
            UpdateJob(JobId(7), {nonsense: "1"}).command()


# ------------------------------------------------------------------------------------------------------ accounting


def test_accounting_by_id_name_and_time() -> None:
    argv = Accounting(names=("b", "a"), since=NOW, user="ada").command().argv
    assert {"--name=a,b", "--user=ada", "--starttime=uts1795255200"} <= set(argv)
    with pytest.raises(InvalidRequest, match="in one query"):
        Accounting(ids=tuple(map(JobId, range(1, 6000)))).command()


def test_ones_own_jobs_in_accounting_are_those_of_whoever_asks(tmp_path: Path) -> None:
    command = tmp_path / "sacct"
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    command.chmod(0o755)
    question = Accounting(names=("a b",), mine=True)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ran = subprocess.run(question.command().argv, env=path, capture_output=True, text=True, check=True)
    assert {"--name=a b", f"--user={os.geteuid()}"} <= set(ran.stdout.splitlines())
    assert question.error(CommandOutput(1, b"", b"what?")).command == "sacct"


def test_runs_that_were_requeued_come_with_the_last() -> None:
    question = Accounting(ids=(JobId(7),), steps=True)
    (job,) = question.read(
        printed(
            question.table,
            {"JobID": "7", "State": "NODE_FAIL", "Start": "1795255200", "ExitCode": "0:1"},
            {"JobID": "7.batch", "State": "CANCELLED", "Start": "1795255200"},
            {"JobID": "7", "State": "COMPLETED", "Start": "1795255200", "ExitCode": "0:0"},
            {"JobID": "7.batch", "State": "COMPLETED", "Start": "1795255200", "MaxRSS": "2048K"},
        )
    )
    assert job.state.succeeded
    assert job.restarts == 1
    assert [run.state.base for run in job.earlier_runs] == [JobBase.NODE_FAIL]
    assert [(str(step.id), step.state.base, step.max_rss) for step in job.steps] == [
        ("7.batch", JobBase.COMPLETED, 2 << 20)
    ]
    assert [step.state.base for step in job.earlier_runs[0].steps] == [JobBase.CANCELLED]


@pytest.mark.parametrize(
    ("printed_time", "seconds"), [("00:30.250", 30.25), ("00:01:30", 90), ("1-02:00:00", 93600), ("", None)]
)
def test_what_a_step_has_used(printed_time: str, seconds: float | None) -> None:
    question = Accounting(ids=(JobId(7),), steps=True)
    usage = "cpu=00:00:30,energy=0,fs/disk=2332,mem=3072K,pages=0,vmem=4096K"
    rows = {"JobID": "7"}, {"JobID": "7.0", "TotalCPU": printed_time, "MaxRSS": "1024K", "TRESUsageInTot": usage}
    [job] = question.read(printed(question.table, *rows))
    assert job.steps[0].cpu_time == (None if seconds is None else timedelta(seconds=seconds))
    assert (job.steps[0].max_rss, job.steps[0].total_rss) == (1 << 20, 3 << 20)


def test_a_run_that_waits_has_no_steps_yet() -> None:
    question = Accounting(ids=(JobId(7),), steps=True)
    (job,) = question.read(
        printed(
            question.table,
            {"JobID": "7", "State": "REQUEUED", "Start": "1795255200"},
            {"JobID": "7.batch", "State": "COMPLETED", "Start": "1795255200"},
            {"JobID": "7", "State": "PENDING", "Start": "Unknown", "Eligible": "1795255400"},
        )
    )
    assert (job.steps, len(job.earlier_runs[0].steps)) == ((), 1)


def test_usage_is_that_of_each_run_and_counts_no_step_beside_it() -> None:
    question = ListUsage(everyone=True, since=NOW)
    # Without steps sacct has no CPU time, as it sums theirs up.
    assert "--allocations" not in question.command().argv
    rows = [{"JobID": job, "TotalCPU": time} for job, time in (("7", "00:30"), ("7.batch", "00:30"), ("7", "00:10"))]
    used = question.read(printed(question.table, *rows))
    assert [[step.cpu_time for step in run.steps] for run in used] == [[timedelta(seconds=30)], [timedelta(seconds=10)]]


def test_names_as_accounting_writes_them_are_found() -> None:
    long = "é" * 400
    question = Accounting(names=('say "x"', long), since=NOW)
    rows = [{"JobID": "1", "JobName": "say `x`"}, {"JobID": "2", "JobName": long[:NAME_LENGTH]}]
    assert len(question.read(printed(question.table, *rows, {"JobID": "3", "JobName": "say"}))) == 2
    assert name_in_accounting("plain.af-1") == "plain.af-1"


def test_rights() -> None:
    question = ShowRights("ada")

    rights = question.read(CommandOutput(0, b"ada|Administrator|ml|ml||normal,high\nada|Administrator|ml|bio|gpu|\n"))
    assert rights.may_change_nodes
    assert rights.associations == (Association("ml", qos=("normal", "high")), Association("bio", "gpu"))
    assert (rights.accounts, rights.qos) == (("ml", "bio"), ("normal", "high"))
    assert not question.read(CommandOutput(0, b"")).is_known


# ----------------------------------------------------------------------------------------------------------- nodes


#: What scontrol prints for a node with little to say, and for one with much.
NODES = b"""\
NodeName=worker-0 CoresPerSocket=8
   CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.00
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=(null)
   GresUsed=(null)
   NodeAddr=worker-0 NodeHostName=worker-0
   RealMemory=64000 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1
   State=IDLE+CLOUD+POWERED_DOWN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   BootTime=None SlurmdStartTime=None
   LastBusyTime=1795255000 ResumeAfterTime=None
   CfgTRES=cpu=16,mem=62.50G,billing=16
   AllocTRES=
   CurrentWatts=0 AveWatts=0

NodeName=worker-1 Arch=x86_64 CoresPerSocket=8
   CPUAlloc=4 CPUEfctv=15 CPUTot=16 CPULoad=0.00
   AvailableFeatures=h100,ib
   ActiveFeatures=h100
   Gres=gpu:h100:8
   GresDrain=N/A
   GresUsed=gpu:h100:2(IDX:0-1)
   NodeAddr=10.0.0.7 NodeHostName=worker-1 Port=6820 Version=24.11.5
   OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC State=odd
   RealMemory=64000 AllocMem=1000 FreeMem=N/A Sockets=2 Boards=1
   State=MIXED+CLOUD+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=main,hidden
   BootTime=1795255200 SlurmdStartTime=1795255200
   LastBusyTime=1795255000 ResumeAfterTime=None
   CfgTRES=cpu=16,mem=62.50G,billing=16,gres/gpu=8
   AllocTRES=cpu=4
   CurrentWatts=0 AveWatts=0
   Reason=[user_problem] mail a@b [x] [root@1795255200]
          State=DOWN in its second line
   Comment=by InstanceId=none Reason=none
and more
   Extra={"a": 1}
   InstanceId=computeinstance-7 InstanceType=h100
   ReservationName=nights

"""


def test_nodes_are_read() -> None:
    off, busy = ListNodes().read(CommandOutput(0, NODES))
    assert off == Node(name="worker-0", state=NodeState.parse("IDLE+CLOUD+POWERED_DOWN"), cpus=16, memory=64000)
    assert busy == Node(
        name="worker-1",
        state=NodeState.parse("MIXED+CLOUD+DRAIN"),
        partitions=("hidden", "main"),
        reason="[user_problem] mail a@b [x]\nState=DOWN in its second line",
        reason_user="root",
        reason_since=NOW,
        comment="by InstanceId=none Reason=none\nand more",
        features=("h100", "ib"),
        gres="gpu:h100:8",
        gres_used="gpu:h100:2(IDX:0-1)",
        cpus=16,
        memory=64000,
        instance="computeinstance-7",
        booted_at=NOW,
    )


def test_nodes_that_do_not_exist_are_named() -> None:
    question = ListNodes(("worker-0", "worker-7", "worker-8"))
    with pytest.raises(errors.UnknownNode, match=r"worker-\[7-8\]"):
        question.read(CommandOutput(1, NODES + b"Node worker-7 not found\nNode worker-8 not found\n"))


def test_orders_to_nodes() -> None:
    names = ("worker-2", "worker-0", "worker-1")
    assert PowerUp(names).command().argv[2:] == ("NodeName=worker-[0-2]", "State=power_up")
    assert PowerDown(names, PowerDownMode.FORCE).command().argv[3:] == ("State=power_down_force",)
    assert Drain(names, 'a "b" = c').command().argv[3:] == ("State=drain", 'Reason="a "b" = c"')


@pytest.mark.parametrize(
    "question",
    [
        PowerUp(()),
        PowerUp(("ALL",)),
        PowerUp(("worker-0 State=down",)),
        PowerUp(("--help",)),
        Drain(("worker-0",), ""),
        Drain(("worker-0",), "two\nlines"),
        Drain(("worker-0",), "x" * 2000),
        ShowRights("--help"),
        ShowRights("a b"),
        ListJobs(user="a,b"),
        ListJobs(states=("PENDING --x",)),
        DeleteReservation("a b"),
        DeleteReservation(""),
        MintToken(timedelta(hours=1), user="x=y"),
        CreateReservation(name="n", nodes=("worker-0",), start=NOW, end=NOW, users=("root",)),
        CreateReservation(name="n", nodes=("worker-0",), start=NOW, end=None),
        CreateReservation(name="n", nodes=(), start=NOW, end=None, users=("root",)),
        CreateReservation(name="n", nodes=("a",), start=NOW, end=None, users=("root",), flags=("MAINT NODES=b",)),
        UpdateReservation(name="n"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(question: Request[Any]) -> None:
    with pytest.raises(InvalidRequest):
        question.command()


# ---------------------------------------------------------------------------------------------------- reservations

LINE = (
    "ReservationName={name} StartTime=1795255200 EndTime=1795258800 Duration=01:00:00 Nodes=worker-[0-1] NodeCnt=2 "
    "CoreCnt=32 Features=(null) PartitionName=(null) Flags=MAINT,IGNORE_JOBS,SPEC_NODES TRES=cpu=32 Users=root "
    "Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) MaxStartDelay=(null){comment}\n"
)


def test_reservations_with_free_text_at_both_ends() -> None:
    text = LINE.format(name="a b=c", comment=" Comment=x State=INACTIVE\nand more") + LINE.format(name="z", comment="")
    first, second = ListReservations().read(CommandOutput(0, text.encode()))
    assert (first.name, first.comment, first.is_active) == ("a b=c", "x State=INACTIVE\nand more", True)
    assert (first.start, first.end) == (NOW, NOW + timedelta(hours=1))
    assert first.flags == {"MAINT", "IGNORE_JOBS", "SPEC_NODES"}
    assert (first.users, first.accounts, first.nodelist) == (("root",), (), "worker-[0-1]")
    assert (second.name, second.comment) == ("z", "")
    assert ListReservations().read(CommandOutput(0, b"No reservations in the system\n")) == ()


@pytest.mark.parametrize(("said", "has_own"), [("GLOBAL", False), ("INFINITE", False), ("600", True)])
def test_a_partition_may_have_a_suspend_time_of_its_own(said: str, has_own: bool) -> None:
    line = f"PartitionName=main Default=YES Nodes=gpu-0 State=UP SuspendTimeout=GLOBAL SuspendTime={said} TRES=cpu=1\n"
    [found] = ListPartitions().read(CommandOutput(0, line.encode()))
    assert (found.name, found.has_suspend_time) == ("main", has_own)


def test_deleting_what_is_not_there() -> None:
    said = "delete_reservation reservationname=n: Requested reservation is invalid"
    assert not DeleteReservation("n").read(failed(said))
    assert DeleteReservation("n").read(CommandOutput(0, b""))


# ----------------------------------------------------------------------------------------------------- the cluster


def test_settings() -> None:
    text = (
        "Configuration data as of 1795256160\n"
        "AccountingStorageType   = accounting_storage/slurmdbd\nClusterName             = soperator\n"
        "MaxArraySize            = 10001\nMinJobAge               = 300 sec\nResumeTimeout           = 30 sec\n"
        "SlurmctldParameters     = cloud_dns,rl_enable,rl_bucket_size=60\nSLURM_VERSION           = 26.05.3-nebius-2\n"
        "SuspendExcNodes         = worker-cpu-[0-1]\nSuspendTime             = INFINITE\n"
        "\nMPI Plugins Configuration:\nSuspendTime = 5 sec\n\nSlurmctld(primary) at controller-0 is UP\n"
    )
    config = ShowConfig().read(CommandOutput(0, text.encode()))
    assert (config.release, config.cluster, config.settings["MaxArraySize"]) == ((26, 5), "soperator", "10001")
    assert config.min_job_age == timedelta(minutes=5)
    assert (config.suspend_time, config.suspend_exc_nodes) == (None, "worker-cpu-[0-1]")
    assert config.has_accounting
    assert config.rate_limit is not None
    with pytest.raises(errors.UnreadableAnswer):
        ShowConfig().read(CommandOutput(0, b""))


def test_pinging_two_controllers() -> None:
    text = "Slurmctld(primary) at c-0 is DOWN\nSlurmctld(backup) at c-1 is UP\n"
    first, second = Ping().read(CommandOutput(0, text.encode()))
    assert (first.host, first.role, first.is_up, second.is_up) == ("c-0", "primary", False, True)
    with pytest.raises(errors.ControllerUnreachable, match="c-0 is down"):
        Ping().read(CommandOutput(1, b"Slurmctld(primary) at c-0 is DOWN\n****\n"))


def test_the_clock() -> None:
    text = (
        "*****\nsdiag output at Sat Nov 21 10:16:00 2026 (1795255260)\n"
        "Data since      Sat Nov 21 10:15:27 2026 (1795255200)\n*****\n"
        "Server thread count:  3\nAgent queue size:     4\n\nJobs pending:   6\n"
    )
    assert ReadClock().read(CommandOutput(0, text.encode())) == NOW + timedelta(minutes=1)
    assert ReadClock().read(CommandOutput(0, b"")) is None


def test_tokens() -> None:
    assert MintToken(timedelta(hours=1)).read(CommandOutput(0, b"SLURM_JWT=a.b.c\n")) == "a.b.c"
    with pytest.raises(errors.UnreadableAnswer):
        MintToken(timedelta(hours=1)).read(CommandOutput(0, b"\n"))


def test_blocks_of_a_topology_are_those_of_their_nodes() -> None:
    said = b"BlockName=b1 BlockIndex=0 Nodes=gb-[0-1] BlockSize=18\nBlockName=b2 BlockIndex=1 Nodes=gb-2 BlockSize=18\n"
    assert ShowTopology().read(CommandOutput(0, said)) == {"gb-0": "b1", "gb-1": "b1", "gb-2": "b2"}
    said += b"AggregatedBlock=b[1-2] BlockIndex=2 Nodes=gb-[0-2] BlockSize=36\n"
    assert ShowTopology().read(CommandOutput(0, said)) == {"gb-0": "b1", "gb-1": "b1", "gb-2": "b2"}
    assert ShowTopology().read(CommandOutput(0, b"")) == {}


def test_accounting_of_a_time_is_asked_for_no_longer() -> None:
    since = datetime(2026, 11, 21, tzinfo=timezone.utc)
    until = since + timedelta(days=1)
    for asked, end in ((Accounting(since=since), "now+1day"), (Accounting(since=since, until=until), "uts1795305600")):
        assert f"--endtime={end}" in asked.command().argv
