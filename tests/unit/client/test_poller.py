"""One round for all who wait: what is asked, and who is told of what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_soperator.client.poller import JobNews, Poller, WatchList
from airflow_provider_soperator.slurm.errors import (
    AccountingDisabled,
    AccountingUnreachable,
    ControllerUnreachable,
    InvalidRequest,
    SlurmError,
)
from airflow_provider_soperator.slurm.job_ids import JobId
from airflow_provider_soperator.slurm.job_records import AccountingJob, Job, JobStatus
from airflow_provider_soperator.slurm.requests import Accounting, ListJobs, Request
from airflow_provider_soperator.slurm.requests.commands import run_steps
from airflow_provider_soperator.slurm.requests.submission import CancelWithdrawn
from airflow_provider_soperator.transports.transport_errors import ConnectionLost, NotSupported
from tests.unit.client.tracking import Slurm, past, queued, run_without_waiting


class Listener:
    """Somebody who waits, and remembers everything that he was told."""

    def __init__(self, job: str, name: str = "", mine: bool = True) -> None:
        self.job, self.name, self.mine, self.indices = JobId.parse(job), name, mine, frozenset[int]()
        self.news: list[JobStatus] = []

    @property
    def told(self) -> JobStatus | None:
        return self.news[-1] if self.news else None

    def tell(self, status: JobStatus) -> None:
        self.news.append(status)

    @property
    def states(self) -> list[str]:
        return [str(status.state) for status in self.news]


class Rounds:
    """A book and the answers that it gets, with a clock that the test sets."""

    def __init__(self, *listeners: Listener) -> None:
        self.now = 1000.0
        self.book: WatchList[Listener] = WatchList(clock=lambda: self.now)
        self.queue: list[Job] | Exception = []
        self.past: list[AccountingJob] | Exception = []
        self.asked: list[Request[Any]] = []
        #: Done while a question is under way.
        self.meanwhile: Callable[[], None] = lambda: None
        for listener in listeners:
            self.book.add(listener)

    def round(self, after: float = 10.0) -> list[Request[Any]]:
        """One round; what was asked in it."""
        self.asked.clear()
        self.now += after
        run_steps(self.book.round(), self._answer)
        return list(self.asked)

    def _answer(self, request: Request[Any]) -> Iterable[Job | AccountingJob]:
        self.asked.append(request)
        self.meanwhile()
        answer = self.queue if isinstance(request, ListJobs) else self.past
        if isinstance(answer, Exception):
            raise answer
        if isinstance(request, ListJobs):
            return [row for row in answer if isinstance(row, Job) and request.admits(row)]
        assert isinstance(request, Accounting)
        return [row for row in answer if isinstance(row, AccountingJob) and request.admits(row)]


@pytest.mark.parametrize("mine", [True, False])
def test_of_ones_own_jobs_others_cannot_pretend_to_have_one(mine: bool) -> None:
    """To root accounting shows the jobs of all users, whose names anybody can copy."""
    asked = Rounds(Listener("7", mine=mine)).round()
    assert [request.mine for request in asked if isinstance(request, (ListJobs, Accounting))] == [mine, mine]


def test_a_round_asks_the_queue_once_whatever_the_number() -> None:
    listeners = [Listener(str(1 + number % 100)) for number in range(1000)]
    rounds = Rounds(*listeners)
    rounds.queue = [queued(str(number), "RUNNING") for number in range(1, 101)]
    assert rounds.round() == [ListJobs(ids=tuple(map(JobId, range(1, 101))), mine=True)]
    assert all(listener.states == ["RUNNING"] for listener in listeners)


def test_accounting_is_asked_once_and_only_for_what_the_queue_does_not_have() -> None:
    here, gone, array = Listener("1"), Listener("2"), Listener("3")
    rounds = Rounds(here, gone, array)
    rounds.queue = [queued("1", "RUNNING"), queued("3_[1-2]", "PENDING")]
    rounds.past = [past("2", "FAILED"), past("3_[1-2]", "PENDING")]
    [_, question] = rounds.round()
    # Of an array it is not known at first what was there before.
    assert question == Accounting(ids=(JobId(2), JobId(3)), mine=True)
    assert (here.states, gone.states, array.states) == (["RUNNING"], ["FAILED"], ["PENDING"])
    assert [type(request) for request in rounds.round()] == [ListJobs]


def test_news_are_told_once() -> None:
    listener = Listener("1")
    rounds = Rounds(listener)
    for state in ("PENDING", "PENDING", "RUNNING", "RUNNING", "COMPLETING", "COMPLETED"):
        rounds.queue = [queued("1", state)]
        rounds.round()
    assert listener.states == ["PENDING", "RUNNING", "COMPLETING", "COMPLETED"]


def test_whoever_was_told_of_the_end_is_no_longer_asked_for() -> None:
    ended, other = Listener("1"), Listener("2")
    rounds = Rounds(ended, other)
    rounds.queue = [queued("1", "COMPLETED"), queued("2", "RUNNING")]
    rounds.round()
    assert list(rounds.book) == [other]
    assert rounds.round() == [ListJobs(ids=(JobId(2),), mine=True)]


def test_only_ones_own_jobs_are_asked_for_if_all_are() -> None:
    theirs = Listener("2", mine=False)
    rounds = Rounds(Listener("1"), theirs)
    rounds.queue = [queued("1", "RUNNING"), queued("2", "RUNNING")]
    assert rounds.round() == [ListJobs(ids=(JobId(1), JobId(2)))]
    rounds.book.remove(theirs)
    assert rounds.round() == [ListJobs(ids=(JobId(1),), mine=True)]


def test_without_accounting_the_queue_is_still_told_of() -> None:
    here, gone = Listener("1"), Listener("2")
    rounds = Rounds(here, gone)
    rounds.queue, rounds.past = [queued("1", "RUNNING"), queued("2", "RUNNING")], AccountingUnreachable("refused")
    rounds.round()
    rounds.queue = [queued("1", "COMPLETED")]
    for _ in range(20):
        rounds.round()
    assert here.states == ["RUNNING", "COMPLETED"]
    assert [bool(status.trouble) for status in gone.news] == [False, True]
    rounds.past = [past("2", "COMPLETED")]
    rounds.round(after=200)
    assert gone.states == ["RUNNING", "RUNNING", "COMPLETED"]
    assert not gone.news[-1].trouble


def test_what_cannot_be_read_is_the_trouble_of_its_own_job() -> None:
    odd, other = Listener("1"), Listener("2")
    rounds = Rounds(odd, other)
    running = [queued("1", "RUNNING"), queued("2", "RUNNING")]
    rounds.queue = running
    rounds.round()
    rounds.queue = [replace(running[0], unreadable="exit_code: 'odd'"), queued("2", "COMPLETED")]
    rounds.round()
    assert other.states == ["RUNNING", "COMPLETED"]
    assert "exit_code: 'odd'" in odd.news[-1].trouble
    # Nor is it lost, however long that lasts; not even if accounting cannot be read either.
    rounds.past = [replace(past("1", "COMPLETED"), unreadable="ExitCode: 'odd'")]
    for queue in (rounds.queue, []):
        rounds.queue = queue
        for _ in range(100):
            rounds.round()
    assert (odd.states[-1], odd.news[-1].is_over) == ("RUNNING", False)
    rounds.past = [past("1", "COMPLETED")]
    rounds.round()
    assert odd.news[-1].succeeded


def test_other_words_for_the_same_failure_are_no_news() -> None:
    listener = Listener("1")
    rounds = Rounds(listener)
    for words in ("refused", "timed out", "refused"):
        rounds.past = AccountingUnreachable(words)
        rounds.round(after=200)
    rounds.past = ConnectionLost("cut")
    rounds.round(after=200)
    assert ["refused" in status.trouble for status in listener.news] == [True, False]


def test_an_accounting_that_does_not_answer_is_asked_less_and_less() -> None:
    rounds = Rounds(Listener("1"))
    rounds.past = AccountingUnreachable("refused")
    asked = [len(rounds.round(after=1)) == 2 for _ in range(1000)]
    assert 8 <= sum(asked) <= 25
    assert sum(asked[500:]) <= 10


def test_news_of_the_queue_do_not_wait_for_accounting() -> None:
    here, gone = Listener("1"), Listener("2")
    rounds = Rounds(here, gone)
    rounds.queue = [queued("1", "RUNNING")]
    told_before: list[bool] = []
    rounds.meanwhile = lambda: told_before.append(bool(here.news))
    rounds.round()
    assert told_before == [False, True]


def test_a_cluster_without_accounting_is_judged_by_its_queue() -> None:
    listener = Listener("1")
    rounds = Rounds(listener)
    rounds.past = AccountingDisabled("accounting storage is disabled")
    for _ in range(8):
        rounds.round()
    assert listener.news[-1].lost


@pytest.mark.parametrize("failure", [ControllerUnreachable("refused"), ConnectionLost("cut")])
def test_time_in_which_the_queue_is_silent_does_not_count(failure: Exception) -> None:
    listener = Listener("1")
    rounds = Rounds(listener)
    rounds.round()
    rounds.queue = failure
    for _ in range(20):
        with pytest.raises(type(failure)):
            rounds.round()
    rounds.queue = []
    rounds.round()
    assert not listener.news
    for _ in range(6):
        rounds.round()
    assert listener.news[-1].lost


def test_what_was_withdrawn_is_cancelled_once_the_cluster_answers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(queued("7", "RUNNING"), accounting=[])
    away: list[Exception] = []

    def before() -> None:
        if away:
            raise away[0]

    slurm.before = before

    async def outage() -> tuple[list[int], str]:
        watch, counts = Poller(slurm.ask).watch(JobId(7)), []
        for failures in ([], [ControllerUnreachable("away")], [], []):
            away[:] = failures
            await asyncio.sleep(600)
            counts.append(slurm.count(CancelWithdrawn))
        watch.close()
        return counts, watch.told.trouble if watch.told else ""

    # Before the first answer somebody else may have been told to cancel a job, too.
    assert run_without_waiting(outage(), monkeypatch) == ([1, 1, 2, 2], "")


@pytest.mark.parametrize("failure", [OSError(24, "Too many open files"), AssertionError()])
def test_a_failure_that_nobody_expects_ends_no_watch(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = Slurm(queued("7", "RUNNING"), accounting=[])

    def before() -> None:
        if time.monotonic() < 1600:
            raise failure

    slurm.before = before

    async def told() -> list[JobStatus]:
        watch = Poller(slurm.ask).watch(JobId(7))
        news = [await watch.next(), await watch.next()]
        watch.close()
        return [status for status in news if status]

    troubled, running = run_without_waiting(told(), monkeypatch)
    assert repr(failure) in troubled.trouble
    assert (str(running.state), running.trouble) == ("RUNNING", "")
    assert "Traceback" in caplog.text
    # It is not asked again at once.
    assert len(slurm.asked) < 30


@pytest.mark.parametrize("failure", [InvalidRequest("no such name"), NotSupported("not over this transport")])
def test_what_can_never_succeed_ends_the_watches(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Slurm(accounting=[])

    def look() -> None:
        raise failure

    slurm.before_look = look

    async def ends() -> None:
        await Poller(slurm.ask).watch(JobId(7)).end()

    with pytest.raises(type(failure)):
        run_without_waiting(ends(), monkeypatch)


def test_a_single_slow_answer_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a slurmctld that hung for a minute the ends of jobs would be seen after ten, as missed heartbeats."""

    class Slow(Slurm):
        async def ask(self, request: Request[Any]) -> Any:
            if isinstance(request, ListJobs):
                await asyncio.sleep(answers.pop(0) if answers else 0.1)
            return await super().ask(request)

    async def asked_within(seconds: float, *slow: float) -> int:
        answers[:] = slow
        slurm = Slow(queued("7", "RUNNING"), accounting=[])
        watch = Poller(slurm.ask).watch(JobId(7))
        await asyncio.sleep(seconds)
        watch.close()
        return slurm.count(ListJobs)

    answers: list[float] = []
    assert run_without_waiting(asked_within(90, 0.1, 60), monkeypatch) >= 5
    # A slurmctld that is busy is spared.
    assert run_without_waiting(asked_within(400, 20, 20, 20), monkeypatch) == 3


class SlowAccounting(Slurm):
    """Its slurmdbd takes its time; ``fails`` is what comes of that."""

    takes = 95.0
    fails: Exception | None = None
    queue_fails: Exception | None = None
    under_way = most_under_way = 0

    async def ask(self, request: Request[Any]) -> Any:
        if isinstance(request, Accounting):
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            try:
                await asyncio.sleep(self.takes)
            finally:
                self.under_way -= 1
            if self.fails:
                raise self.fails
        elif self.queue_fails and isinstance(request, ListJobs):
            raise self.queue_fails
        return await super().ask(request)


# Of an array it is not known at first what was there before.
ARRAY = (queued("9_0", "RUNNING"), queued("9_1", "RUNNING"))


def test_an_accounting_that_hangs_delays_no_news_of_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = SlowAccounting(queued("7", "RUNNING"), *ARRAY, accounting=[])
    slurm.fails = AccountingUnreachable("Unable to connect to database")

    async def story() -> tuple[float, list[JobStatus | None]]:
        poller = Poller(slurm.ask)
        watch, array = poller.watch(JobId(7)), poller.watch(JobId(9), indices=(0, 1))
        await asyncio.sleep(5)
        told, slurm.queue[0] = [array.told], queued("7", "COMPLETED")
        since = time.monotonic()
        await watch.end()
        took = time.monotonic() - since
        # It has failed by then, and in between nothing was news.
        for after in (85, 60, 60):
            await asyncio.sleep(after)
            told.append(array.told)
        await poller.close()
        return took, told

    took, [first, *later] = run_without_waiting(story(), monkeypatch)
    assert took < 5
    assert first
    assert (str(first.state), first.is_partial, first.trouble) == ("RUNNING", True, "")
    assert all(one and "Unable to connect" in one.trouble for one in later[1:])
    gaps = [after - before for before, after in zip(slurm.asked_at, slurm.asked_at[1:], strict=False)]
    assert max(gaps) < 15
    assert slurm.most_under_way == 1
    assert slurm.count(Accounting) <= 3


def test_what_breaks_the_reader_of_a_slow_answer_is_told_and_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slurm = SlowAccounting(*ARRAY, accounting=[])
    slurm.takes, slurm.fails = 5, KeyError("State")

    async def story() -> str:
        poller = Poller(slurm.ask)
        array = poller.watch(JobId(9), indices=(0, 1))
        # The round after the failure tells it.
        await asyncio.sleep(12)
        assert array.told
        said = array.told.trouble
        await poller.close()
        return said

    assert "the poll failed unexpectedly (KeyError('State'))" in run_without_waiting(story(), monkeypatch)
    assert "A poll has failed unexpectedly, and is repeated" in caplog.text


def test_an_answer_of_accounting_does_not_hide_that_the_queue_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = SlowAccounting(*ARRAY, accounting=[])
    slurm.takes = 25

    async def story() -> list[str]:
        poller = Poller(slurm.ask)
        array = poller.watch(JobId(9), indices=(0, 1))
        await asyncio.sleep(5)
        slurm.queue_fails = ControllerUnreachable("Unable to contact slurm controller")
        said = list[str]()
        # The answer comes in the meantime.
        for _ in range(8):
            await asyncio.sleep(5)
            assert array.told
            said.append(array.told.trouble)
        await poller.close()
        return said

    said = run_without_waiting(story(), monkeypatch)
    assert slurm.most_under_way == 1
    assert all("Unable to contact" in one for one in said[2:])


def test_a_slow_answer_of_accounting_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = SlowAccounting(*ARRAY, accounting=[past("8", "COMPLETED")])

    async def story(*jobs: int) -> list[float]:
        poller, began = Poller(slurm.ask), time.monotonic()
        watches = [poller.watch(JobId(job), name="train", poll_interval=900) for job in jobs]

        async def end(watch: JobNews) -> float:
            status = await watch.end()
            assert status
            assert (status.succeeded, status.lost) == (watch.job == JobId(8), "" if watch.job == JobId(8) else LOST)
            return time.monotonic() - began

        ends = await asyncio.gather(*map(end, watches))
        await poller.close()
        return ends

    [known] = run_without_waiting(story(8), monkeypatch)
    # When it comes, and not with a later round.
    assert known < 100
    # A job that accounting does not have is lost only once it has said so for a while.
    for takes in (5, 95):
        slurm.takes = takes
        assert run_without_waiting(story(6), monkeypatch)[0] > 60 + takes


LOST = "it is in neither the queue nor accounting"


def test_a_poller_that_is_closed_asks_accounting_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = SlowAccounting(*ARRAY, accounting=[])

    async def story() -> tuple[int, int]:
        poller = Poller(slurm.ask)
        poller.watch(JobId(9))
        await asyncio.sleep(30)
        before = slurm.under_way
        await poller.close()
        return before, slurm.under_way

    assert run_without_waiting(story(), monkeypatch) == (1, 0)


def meanwhile(rounds: Rounds, queue: list[Job], answer: Any) -> None:
    """The queue is asked once more before accounting answers."""
    steps = rounds.book.ask_accounting(run_steps(rounds.book.ask_queue(), rounds._answer))
    assert isinstance(next(steps), Accounting)
    rounds.queue = list(queue)
    run_steps(rounds.book.ask_queue(), rounds._answer)
    with pytest.raises(StopIteration):
        steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)


def test_what_the_queue_has_told_since_accounting_was_asked_is_newer() -> None:
    """An element that has failed and was put back may run, end and be forgotten before a slow answer comes."""
    array = Listener("9")
    rounds = Rounds(array)
    rounds.queue = list(ARRAY)
    meanwhile(rounds, [], (past("9_0", "FAILED"), past("9_1", "RUNNING")))
    assert array.states == ["RUNNING"]
    rounds.past = [past("9_0", "COMPLETED"), past("9_1", "COMPLETED")]
    rounds.round()
    assert array.news[-1].succeeded


def test_a_late_failure_of_accounting_is_no_trouble_of_a_job_that_the_queue_knows_by_then() -> None:
    listener = Listener("7")
    rounds = Rounds(listener)
    meanwhile(rounds, [queued("7", "RUNNING")], AccountingUnreachable("refused"))
    assert [(str(status.state), status.trouble) for status in listener.news] == [("RUNNING", "")]


def test_nobody_is_troubled_where_what_was_withdrawn_cannot_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Slurm):
        async def ask(self, request: Request[Any]) -> Any:
            if isinstance(request, CancelWithdrawn):
                raise SlurmError("mktemp: No space left on device")
            return await super().ask(request)

    async def told() -> str:
        watch = Poller(Full(queued("7", "RUNNING"), accounting=[]).ask).watch(JobId(7))
        await asyncio.sleep(60)
        watch.close()
        return watch.told.trouble if watch.told else "nothing"

    assert run_without_waiting(told(), monkeypatch) == ""


def test_trouble_is_told_once_with_what_is_known() -> None:
    listener = Listener("1")
    rounds = Rounds(listener)
    rounds.queue = [queued("1", "RUNNING")]
    rounds.round()
    rounds.book.tell_all("slurmctld is down")
    rounds.book.tell_all("slurmctld is down")
    rounds.round()
    assert [(str(status.state), status.trouble) for status in listener.news] == [
        ("RUNNING", ""),
        ("RUNNING", "slurmctld is down"),
        ("RUNNING", ""),
    ]


def test_thousands_of_ids_go_to_accounting_in_pieces() -> None:
    listeners = [Listener(str(number)) for number in range(1, 6002)]
    rounds = Rounds(*listeners)
    rounds.past = [past(str(number), "COMPLETED") for number in range(1, 6002)]
    questions = [request for request in rounds.round() if isinstance(request, Accounting)]
    assert [len(question.ids or ()) for question in questions] == [5000, 1001]
    assert not rounds.book


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "add meanwhile", "remove meanwhile", "round"]), st.integers(0, 5)),
    max_size=40,
)


@given(ACTIONS)
def test_whoever_comes_and_goes_hears_of_his_own_job_alone(actions: list[tuple[str, int]]) -> None:
    rounds = Rounds()
    rounds.queue = [queued("1", "RUNNING"), queued("2_1", "COMPLETED"), queued("2_[2-3]", "PENDING")]
    rounds.past = [past("3", "FAILED")]
    listeners = [Listener(job) for job in ("1", "1", "2", "2_1", "3", "4")]
    here: set[int] = set()
    gone_at: dict[int, int] = {}

    def change(action: str, number: int) -> None:
        told = listeners[number].told
        if action == "add" and number not in here and not (told and told.is_over):
            rounds.book.add(listeners[number])
            here.add(number)
            gone_at.pop(number, None)
        elif action == "remove":
            rounds.book.remove(listeners[number])
            here.discard(number)
            gone_at.setdefault(number, len(listeners[number].news))

    for action, number in actions:
        if action.endswith("meanwhile"):
            before = rounds.meanwhile

            def both(before: Callable[[], None] = before, action: str = action, number: int = number) -> None:
                before()
                change(action.split()[0], number)

            rounds.meanwhile = both
        elif action == "round":
            rounds.round()
            rounds.meanwhile = lambda: None
        else:
            change(action, number)
        for other, listener in enumerate(listeners):
            assert all(status.id == listener.job for status in listener.news)
            assert all(part.id.job == listener.job.job for status in listener.news for part in status.parts)
            # Told nothing before it came, nor after it went.
            assert len(listener.news) == gone_at.get(other, len(listener.news))
            here -= {other} if listener.told and listener.told.is_over else set()
    assert {id(waiter) for waiter in rounds.book} == {id(listeners[number]) for number in here}
