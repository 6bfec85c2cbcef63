"""Arrays under any interleaving of what the queue shows, forgets, and accounting learns."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.client.job_tracker import LossLimits, TrackedJob
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from tests.unit.client.tracking import past, queued

WHOLE = JobId(9)
PATIENCE = LossLimits(unknown=60, runaway=300)


@dataclass(frozen=True)
class Element:
    """What becomes of one element, and when."""

    index: int
    start: int
    runs: int
    end: str

    def state(self, at: float) -> str:
        if at < self.start:
            return "PENDING"
        if self.end == "CANCELLED":
            # Before it has started: then it is nowhere.
            return ""
        return "RUNNING" if at < self.start + self.runs else self.end

    @property
    def ended(self) -> float:
        return self.start + (0 if self.end == "CANCELLED" else self.runs)


@dataclass(frozen=True)
class Array:
    """An array as a Slurm tells of it that forgets and lags."""

    elements: tuple[Element, ...]
    #: Seconds for which the queue keeps what has ended, and by which accounting lags.
    age: int
    lag: int

    def queue(self, at: float) -> list[Job]:
        shown = [one for one in self.elements if at < one.ended + self.age]
        return [queued(job, state) for job, state in self._rows(shown, at)]

    def accounting(self, at: float) -> list[AccountingJob]:
        line = f"sbatch --array={','.join(str(one.index) for one in self.elements)} job.sh"
        known = at - self.lag
        return [past(job, state, submit_line=line) for job, state in self._rows(self.elements, known)] * (known >= 0)

    def ends(self, at: float) -> list[str]:
        return [one.end for one in self.elements if at >= one.ended]

    @staticmethod
    def _rows(elements: list[Element] | tuple[Element, ...], at: float) -> list[tuple[str, str]]:
        waiting = ",".join(str(one.index) for one in elements if one.state(at) == "PENDING")
        rows = [(f"9_{one.index}", state) for one in elements if (state := one.state(at)) not in ("", "PENDING")]
        return rows + [(f"9_[{waiting}]", "PENDING")] * bool(waiting)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    ends = draw(st.lists(st.sampled_from(["COMPLETED", "FAILED", "CANCELLED"]), min_size=1, max_size=5))
    # One that is cancelled as the last of all keeps its row; see the integration tests.
    if set(ends) == {"CANCELLED"}:
        ends[0] = "COMPLETED"
    moments, times = st.integers(1, 100), st.integers(1, 60)
    elements = (Element(index, draw(moments), draw(times), end) for index, end in enumerate(ends))
    return Array(tuple(elements), age=draw(st.integers(0, 40)), lag=draw(st.integers(0, 30)))


def look(job: TrackedJob, array: Array, at: float, *, with_accounting: bool) -> JobStatus | None:
    job.look_at_queue(array.queue(at))
    if not job.is_open:
        job.judge(at, PATIENCE)
    elif with_accounting:
        job.look_at_accounting(array.accounting(at))
        job.judge(at, PATIENCE)
    else:
        job.could_not_ask()
    return job.status_of(WHOLE, job.parts(), "")


@given(arrays(), st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=40))
def test_an_array_is_never_over_before_its_last_element(array: Array, looks: list[tuple[int, bool]]) -> None:
    job, at = TrackedJob(9), 0.0
    # Whoever looks after the moments that were drawn looks on until nothing can change any more.
    for pause, with_accounting in [*looks, *[(10, True)] * 60]:
        at += pause
        status = look(job, array, at, with_accounting=with_accounting)
        if status and status.is_over:
            break
    assert status is not None
    assert status.is_finished, f"over by {at}: {status}"
    said = {index: str(part.state) for part in status.parts for index in part.id.indices()}
    assert said == {one.index: one.end for one in array.elements}
    assert len(array.ends(at)) == len(array.elements)
    assert status.succeeded == all(one.end == "COMPLETED" for one in array.elements)
