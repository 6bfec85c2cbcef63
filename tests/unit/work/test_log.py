"""The log of a task with a job: what is submitted, one line for each change of an array, and why the job has ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from airflow_provider_soperator.client.client import AsyncSlurmClient
from airflow_provider_soperator.client.job_run import LAST_LINES, MOST_OF_ELEMENT, MOST_SHOWN, JobRun
from airflow_provider_soperator.slurm.cluster_records import ClusterConfig, Node
from airflow_provider_soperator.slurm.files import ReadPieces
from airflow_provider_soperator.slurm.job import BatchJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import JobStatus
from airflow_provider_soperator.slurm.notations import ExitCode
from airflow_provider_soperator.slurm.states import NodeState
from airflow_provider_soperator.slurm.submission_keys import SubmissionKey
from airflow_provider_soperator.transports.transport_errors import NotSupported
from airflow_provider_soperator.work.sbatch import Chain, Published, follow
from tests.unit.client.tracking import Slurm, queued, run_without_waiting

KEY = SubmissionKey("a" * 12)


@dataclass
class Log:
    """The records of a task, without those of its output if they are told apart."""

    records: list[tuple[str, str]] = field(default_factory=list)

    def info(self, event: str, *args: Any) -> None:
        self.records.append(("INFO", event % args))

    def warning(self, event: str, *args: Any) -> None:
        self.records.append(("WARNING", event % args))

    def error(self, event: str, *args: Any) -> None:
        self.records.append(("ERROR", event % args))

    def of(self, level: str) -> list[str]:
        return [text for one, text in self.records if one == level]


def part(job: str, state: str, **fields: Any) -> Any:
    given = {"raw_id": 7, "workdir": "/root", "stdout": "fit-%j.out" if "_" not in job else "fit-%A_%a.out", **fields}
    return queued(job, state, name=KEY.name("fit"), **given)


def followed(
    slurm: Slurm, looks: list[list[Any]], job: BatchJob, monkeypatch: pytest.MonkeyPatch, key: SubmissionKey = KEY
) -> tuple[Log, JobStatus, list[str]]:
    """Follow a job through a queue that changes with each look, and its last."""
    log = Log()

    def look() -> None:
        slurm.queue = looks.pop(0) if len(looks) > 1 else looks[0]

    async def push(*_: Any) -> None: ...

    async def work() -> tuple[JobStatus, list[str]]:
        client = AsyncSlurmClient(slurm)
        run = JobRun(client, job, [key])
        await run.submit()
        slurm.before_look = look
        published = Published(push, client, {}, {}, log)
        end = await follow(run, log, published, Chain(), push, " over ssh (connection a)")  # type: ignore[arg-type]
        # The reader of output ends at its next look.
        await asyncio.sleep(60)
        return end

    status, last = run_without_waiting(work(), monkeypatch)
    return log, status, last


FIT = BatchJob(command="fit", name="fit", output="fit-%j.out", partition="main", env={"TOKEN": "secret"})
ARRAY = BatchJob(command="fit", name="fit", output="fit-%A_%a.out", array="0-2")


def test_it_begins_with_what_is_submitted_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.config = ClusterConfig(
        version="24.11.5", cluster="soperator", accounting_storage="accounting_storage/slurmdbd"
    )
    log, _, _ = followed(slurm, [[part("7", "RUNNING")], [part("7", "COMPLETED")]], FIT, monkeypatch)
    assert log.of("INFO")[:4] == [
        "Job over ssh (connection a): sbatch --job-name=fit --partition=main --output=fit-%j.out --export=ALL",
        "Job 7 submitted",
        "Job 7 belongs to alice, is on cluster soperator, writes to /root/fit-7.out",
        "Job 7 is RUNNING",
    ]
    assert not any("secret" in text for _, text in log.records)


def test_an_xcom_that_its_backend_does_not_take_does_the_job_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise PermissionError("read-only bucket")

    log = Log()
    published = Published(refuse, AsyncSlurmClient(Slurm()), {}, {}, log)  # type: ignore[arg-type]
    run_without_waiting(published.begin(JobId(7)), monkeypatch)
    [told] = log.of("INFO")
    assert told == "The XCom job_id could not be stored, which does the job no harm: read-only bucket"


def test_an_element_tells_the_path_of_its_output_once_it_has_its_own_number(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = part("7_[2-3]", "PENDING", stdout="fit.%a-%j.out")
    slurm = Slurm(waiting, accounting=[])
    slurm.files["/root/fit.2-9.out"] = b""
    looks = [[waiting], *([part("7_2", state, raw_id=9, stdout="fit.%a-%j.out")] for state in ("RUNNING", "COMPLETED"))]
    element = SubmissionKey(f"{KEY.text}_2")
    log, _, _ = followed(slurm, looks, FIT.replace(output="fit.2-%j.out"), monkeypatch, element)
    assert log.of("INFO")[2:] == [
        "Job 7_2 belongs to alice",
        "Job 7_2 is PENDING",
        "Job 7_2 writes to /root/fit.2-9.out",
        "Job 7_2 is RUNNING",
        "Job 7_2 is COMPLETED",
    ]


def test_its_end_and_the_last_lines_of_output_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.files["/root/fit-7.out"] = (
        b"".join(b"step %d\n" % step for step in range(1000)) + b"\nNo module named torch\n\n"
    )
    end = part("7", "FAILED", exit_code=ExitCode(1), nodelist="worker-1")
    log, _, last = followed(slurm, [[part("7", "RUNNING")], [end]], FIT, monkeypatch)
    ended, why = log.of("ERROR")
    assert ended == "Job 7 is FAILED on worker-1"
    # The remedy comes first.
    assert why.splitlines()[:2] == [
        "see its output, /root/fit-7.out: job 7 failed on worker-1 with exit code 1",
        "The end of /root/fit-7.out:",
    ]
    assert last == why.splitlines()[1:]
    assert len(last) == LAST_LINES + 1
    assert last[-1] == "  No module named torch"
    diagnosis = log.of("WARNING")
    assert (diagnosis[0], diagnosis[-1]) == ("::group::Diagnosis of job 7", "::endgroup::")
    assert log.records[-1] == ("ERROR", why)


def test_marks_of_groups_in_the_output_fold_and_hide_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.files["/root/fit-7.out"] = b"::group::train\n" + b"step\n" * 150 + b"CUDA out of memory\n::endgroup::\n"
    looks = [[part("7", "RUNNING")], [part("7", "FAILED", exit_code=ExitCode(1))]]
    log, _, _ = followed(slurm, looks, FIT, monkeypatch)
    marked = [text for _, text in log.records if "::group::" in text or "::endgroup::" in text]
    assert marked == ["::group::Diagnosis of job 7", "::endgroup::"]
    assert "  CUDA out of memory" in log.records[-1][1].splitlines()


def test_a_file_for_errors_says_more_than_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.files |= {"/root/fit-7.out": b"fine\n", "/root/fit-7.err": b"broken\n"}
    end = [part("7", "FAILED", exit_code=ExitCode(1))]
    _, _, last = followed(slurm, [end], FIT.replace(error="fit-%j.err"), monkeypatch)
    assert last == ["The end of /root/fit-7.err:", "  broken"]
    # As long as there is something in it.
    slurm.files["/root/fit-7.err"] = b"\n"
    _, _, last = followed(slurm, [end], FIT.replace(error="fit-%j.err"), monkeypatch)
    assert last == ["The end of /root/fit-7.out:", "  fine"]


def test_a_job_that_waits_for_a_node_says_what_is_the_matter_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    reason = "ReqNodeNotAvail,_May_be_reserved_for_other_job"
    drained = Node(name="worker-0", state=NodeState.parse("IDLE+DRAIN"), reason="newcomer looks", reason_user="root")
    slurm.files["/root/fit-7.out"] = b""
    slurm.nodes = [drained, Node(name="worker-1", state=NodeState.parse("IDLE")), Node(name="worker-2", reason="other")]
    looks = [[part("7", "PENDING", reason=reason)], [part("7", "COMPLETED")]]
    log, _, _ = followed(slurm, list(looks), FIT.replace(nodelist="worker-[0-1]"), monkeypatch)
    said = log.of("INFO")
    at = said.index(f"Job 7 is PENDING ({reason})")
    assert said[at + 1 :] == ["  worker-0: IDLE+DRAIN, newcomer looks (by root)", "Job 7 is COMPLETED"]
    assert slurm.looks_at_nodes == 1
    # A job that names no node costs no question.
    followed(slurm, looks, FIT, monkeypatch)
    assert slurm.looks_at_nodes == 1


# ------------------------------------------------------------------------------------------------------------- arrays


def test_an_array_has_a_line_for_each_change_and_each_output_once_failed_ones_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(accounting=[])
    slurm.files |= {f"/root/fit-7_{index}.out": f"begun {index}\nended {index}\n".encode() for index in range(3)}
    looks = [
        [part("7_0", "RUNNING", raw_id=8), part("7_[1-2]", "PENDING")],
        [part(f"7_{index}", "RUNNING", raw_id=8 + index) for index in range(3)],
        # Such as other nodes: the same line is not repeated.
        [part(f"7_{index}", "RUNNING", raw_id=8 + index, restarts=1) for index in range(3)],
        [part("7_0", "RUNNING"), part("7_1", "COMPLETED"), part("7_2", "FAILED", exit_code=ExitCode(2))],
        [part("7_0", "COMPLETED"), part("7_1", "COMPLETED"), part("7_2", "FAILED", exit_code=ExitCode(2))],
    ]
    log, _, last = followed(slurm, looks, ARRAY, monkeypatch)
    said = [text for level, text in log.records if level == "ERROR" or not text.startswith("Job over")]
    lines = [text for text in said if text.startswith("Job 7 has") and ";" not in text]
    # The last one is an error.
    assert list(dict.fromkeys(lines)) == [
        "Job 7 has 2 PENDING, 1 RUNNING of 3 elements",
        "Job 7 has 3 RUNNING of 3 elements",
        "Job 7 has 1 RUNNING, 1 COMPLETED, 1 FAILED (7_2) of 3 elements",
        "Job 7 has 2 COMPLETED, 1 FAILED (7_2) of 3 elements",
    ]
    groups = [text for text in said if text.startswith("::group::7_")]
    assert groups == [
        "::group::7_2 is FAILED: ended 2",
        "::group::7_1 is COMPLETED: ended 1",
        "::group::7_0 is COMPLETED: ended 0",
    ]
    for index in range(3):
        assert said.count(f"begun {index}") == 1
    assert "Job 7 belongs to alice, writes to /root/fit-%A_%a.out" in said
    assert log.of("ERROR")[0] == lines[-1]
    assert last == ["The end of /root/fit-7_2.out:", "  begun 2", "  ended 2"]


def test_one_of_the_elements_that_run_shows_the_progress_at_the_interval_of_polls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(accounting=[])
    slurm.files["/root/fit-7_0.out"] = b""
    running = [part("7_0", "RUNNING"), part("7_1", "RUNNING")]
    looks = [running] * 20 + [[part("7_0", "COMPLETED"), part("7_1", "COMPLETED")]]

    class Growing(Slurm):
        async def ask(self, request: Any) -> Any:
            self.files["/root/fit-7_0.out"] += b"step\n"
            return await super().ask(request)

    growing = Growing(accounting=[])
    growing.files = slurm.files
    log, _, _ = followed(growing, looks, ARRAY.replace(array="0-1"), monkeypatch)
    shown = [text for text in log.of("INFO") if ";" in text]
    assert set(shown) == {"Job 7 has 2 RUNNING of 2 elements; 7_0: step"}
    # As polls are, and not as lines are.
    assert 1 < len(shown) < growing.reads / 2


def test_many_outputs_are_counted_and_failures_have_room_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    many = MOST_SHOWN + 3
    slurm.files |= {f"/root/fit-7_{index}.out": b"a\nb\n" for index in range(many + 1)}
    good = [part(f"7_{index}", "COMPLETED") for index in range(many)]
    looks = [[*good, part(f"7_{many}", "RUNNING")], [*good, part(f"7_{many}", "FAILED", exit_code=ExitCode(2))]]
    log, _, _ = followed(slurm, looks, ARRAY.replace(array=f"0-{many}"), monkeypatch)
    groups = [text for text in log.of("INFO") if text.startswith("::group::7_")]
    assert len(groups) == MOST_SHOWN + 1
    assert groups[-1] == f"::group::7_{many} is FAILED: b"
    assert "(The output of 3 more elements is not shown; read it on the cluster)" in log.of("INFO")


@pytest.mark.parametrize("states", ["CCCF", "CRRR CCRR CCCF"])
def test_a_file_that_all_elements_write_to_is_shown_once_they_have_ended(
    states: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, names = Slurm(accounting=[]), {"R": "RUNNING", "C": "COMPLETED", "F": "FAILED"}
    slurm.files |= {"/root/fit.log": b"2: begins\n3: begins\n"}
    slurm.files |= {f"/root/fit-{index}.err": b"%d fails\n" % index for index in range(4)}
    ended: dict[str, Any] = {"stdout": "fit.log", "nodelist": "w-0"}
    looks = [[part(f"7_{index}", names[one], **ended) for index, one in enumerate(look)] for look in states.split()]
    job = ARRAY.replace(array="0-3", output="fit.log", error="fit-%a.err")
    log, _, _ = followed(slurm, looks, job, monkeypatch)
    said = [text for text in log.of("INFO") if not text.startswith("Job ")]
    assert said[-3:] == ["(All elements write to /root/fit.log)", "2: begins", "3: begins"]
    assert sorted(said[:-3]) == [
        *(f"7_{index} is COMPLETED on w-0: stderr: {index} fails" for index in range(3)),
        "7_3 is FAILED on w-0: stderr: 3 fails",
    ]


def test_of_a_long_output_the_end_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.files["/root/fit-7_0.out"] = b"x\n" * MOST_OF_ELEMENT + b"last\n"
    log, _, _ = followed(slurm, [[part("7_0", "COMPLETED")]], ARRAY.replace(array="0"), monkeypatch)
    said = "\n".join(log.of("INFO"))
    assert f"(Not shown of /root/fit-7_0.out: the {MOST_OF_ELEMENT + 5} bytes before this)\n" in said
    assert said.count("\nlast") == 1


def test_a_file_of_both_output_and_errors_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])
    slurm.files["/root/fit-7_0.out"] = b"a\n"
    job = ARRAY.replace(array="0", error="/root/fit-%A_%a.out")
    log, _, _ = followed(slurm, [[part("7_0", "COMPLETED")]], job, monkeypatch)
    assert [text for text in log.of("INFO") if text.startswith("7_0")] == ["7_0 is COMPLETED: a"]


def test_an_element_that_is_requeued_after_its_end_is_shown_again_and_one_that_is_not_seen_for_a_while_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slurm = Slurm(accounting=[])
    slurm.files |= {f"/root/fit-7_{index}.out": b"a\nb\n" for index in range(2)}
    done, other = part("7_0", "COMPLETED"), part("7_1", "COMPLETED")
    again, waits = part("7_0", "PENDING", restarts=1), part("7_1", "RUNNING")
    for looks, shown in (
        ([[done, waits], [again, waits], [done, other]], 2),
        ([[done, waits], [waits], [done, other]], 1),
    ):
        log, _, _ = followed(slurm, looks, ARRAY.replace(array="0-1"), monkeypatch)
        assert log.of("INFO").count("::group::7_0 is COMPLETED: b") == shown


def test_a_cluster_without_files_is_asked_for_output_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind(Slurm):
        async def ask(self, request: Any) -> Any:
            if isinstance(request, ReadPieces):
                self.reads += 1
                raise NotSupported("slurmrestd has no files")
            return await super().ask(request)

    looks = [[part("7_0", "COMPLETED"), part("7_1", "PENDING")], [part("7_0", "COMPLETED"), part("7_1", "COMPLETED")]]
    slurm = Blind(accounting=[])
    log, _, last = followed(slurm, looks, ARRAY.replace(array="0-1"), monkeypatch)
    assert log.of("INFO").count("(The output of 1 elements is not shown: slurmrestd has no files)") == slurm.reads == 1
    assert last == []
