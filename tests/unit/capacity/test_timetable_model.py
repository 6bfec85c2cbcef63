"""Two weeks of a scheduler that is there, and is not: each handover has its run, or is past."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from unittest.mock import patch

import pendulum
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from airflow_provider_soperator.timetables import capacity
from airflow_provider_soperator.timetables.capacity import CapacityTimetable
from tests.unit.capacity.naive import MINUTE, Week, handovers, weeks

TWO_WEEKS = timedelta(weeks=2)
LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)


class Scheduler(RuleBasedStateMachine):
    """What Airflow's scheduler does with a timetable, beside a list of all handovers that the naive model has found."""

    @initialize(week=weeks(), catchup=st.booleans(), starts=st.booleans(), early=st.integers(0, 3 * 24 * 60))
    def switch_on(self, week: Week, catchup: bool, starts: bool, early: int) -> None:
        self.now = week.change - timedelta(days=4) - early * MINUTE
        self.end = self.now + TWO_WEEKS
        self.lead = week.lead
        since = self.now - TWO_WEEKS
        self.all = [at for at, _ in handovers(since, week.walk(since, self.end + TWO_WEEKS))]
        # Airflow stores it, and reads it again.
        self.timetable = CapacityTimetable.deserialize(CapacityTimetable(week.schedule()).serialize())
        start_date = pendulum.instance(self.now) if catchup or starts else None
        self.restriction = TimeRestriction(earliest=start_date, latest=None, catchup=catchup)
        self.runs: list[DataInterval] = []
        begun = self.begun(LONG_AGO, self.now)
        self.expected = [at for at in self.ahead(begun[-1:]) if start_date is None or at - self.lead == self.now]
        self.noted = self.asked()
        self.create_runs(self.now)

    def begun(self, since: datetime, until: datetime) -> list[datetime]:
        """The handovers whose shifts are to begin after a moment, and up to another one."""
        return [at for at in self.all if since < at - self.lead <= until]

    def ahead(self, begun: list[datetime]) -> list[datetime]:
        """Those that are not past, or not for long."""
        return [at for at in begun if self.now <= max(at, at - self.lead + 10 * MINUTE)]

    def asked(self) -> DagRunInfo | None:
        last = self.runs[-1] if self.runs else None
        with patch.object(capacity, "_now", lambda: pendulum.instance(self.now)):
            return self.timetable.next_dagrun_info(last_automated_data_interval=last, restriction=self.restriction)

    def create_runs(self, until: datetime) -> None:
        """Be there until some time, and create each run when it is to begin."""
        while self.noted is not None and self.noted.run_after <= until:
            self.now = max(self.now, self.noted.run_after)
            interval = self.noted.data_interval
            assert interval is not None
            assert self.noted.run_after == self.noted.logical_date == interval.start == interval.end - self.lead
            self.runs.append(interval)
            self.noted = self.asked()
        self.now = until
        assert [run.end for run in self.runs] == self.expected

    @precondition(lambda self: self.now < self.end)
    @rule(minutes=st.integers(1, 3 * 24 * 60), looks=st.booleans())
    def be_up(self, minutes: int, looks: bool) -> None:
        until = self.now + minutes * MINUTE
        self.expected += self.begun(self.now, until)
        if looks:
            self.noted = self.asked()  # the DAG processor has read the file again
        self.create_runs(until)

    @precondition(lambda self: self.now < self.end)
    @rule(minutes=st.integers(1, 4 * 24 * 60))
    def be_down(self, minutes: int) -> None:
        until = self.now + minutes * MINUTE
        missed = self.begun(self.now, until)
        self.now = until
        self.expected += missed if self.restriction.catchup else self.ahead(missed[-1:])
        self.noted = self.asked()
        self.create_runs(until)

    @rule()
    def start_by_hand(self) -> None:
        """A run of somebody's is for the newest handover, and changes nothing for the others."""
        begun = self.begun(LONG_AGO, self.now)
        interval = self.timetable.infer_manual_data_interval(run_after=pendulum.instance(self.now))
        assert interval.end == begun[-1] if begun else interval.end <= self.now


TestScheduler = Scheduler.TestCase
TestScheduler.settings = settings(max_examples=20, stateful_step_count=12, deadline=None)
