"""Going along with a run to its end: its lines into a log, and the order to end from those who may give it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from airflow_provider_soperator.logger import Logger
from airflow_provider_soperator.terraform.diagnosis import is_locked_out
from airflow_provider_soperator.terraform.diagnostics import Diagnostic, errors, from_text
from airflow_provider_soperator.terraform.progress import Progress
from airflow_provider_soperator.terraform.runs import Run, State

#: Seconds between two looks, and between two bars.
_PAUSE = 0.2
_BAR = 15.0


@dataclass(frozen=True)
class Outcome:
    """How a run has ended."""

    run: Run
    progress: Progress
    #: Nothing if it died without a word.
    status: int | None
    #: Whether it was told to end.
    was_interrupted: bool = False

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """What Terraform has to say; of one that died, that it did."""
        found = tuple(self.progress.diagnostics)
        if self.status == 0 or errors(found):
            return found
        printed = from_text(self.run.errors)
        if errors(printed):
            return (*found, *printed)
        how = "was killed" if self.status is None or self.status > 128 else f"ended with status {self.status}"
        return (*found, Diagnostic("error", f"Terraform {how}", self.run.errors.strip()))


def read(run: Run) -> Outcome:
    """What is known of a run at present."""
    progress = Progress()
    for event in run.lines():
        if event is None:
            break
        for _ in progress.take(event):
            pass
    return Outcome(run, progress, run.status)


@dataclass
class Following:
    """One who goes along."""

    run: Run
    log: Logger
    #: Seconds after which a second order to end is given.
    grace: float
    #: Whether the run was begun by somebody else, so that what it has done so far is told in one line.
    is_late: bool = False
    progress: Progress = field(default_factory=Progress)
    _is_told: bool = False
    _told_at: list[float] = field(default_factory=list)

    def interrupt(self) -> None:
        """Have the run end in good order. May be called by a signal handler."""
        self._is_told = True
        self._tell()

    def to_end(self) -> Outcome:
        """Wait for it, and say what happens meanwhile."""
        is_over, is_silent, next_bar = False, self.is_late, time.monotonic() + _BAR
        for event in self.run.lines():
            if event is not None:
                for line in self.progress.take(event):
                    if not is_silent:
                        self.log.info("%s", line)
                continue
            if is_over:
                break
            if is_silent:
                self.log.info("%s", self.progress.bar(time.time()))
                is_silent = False
            # After its end there is one more look, for what it has printed last.
            is_over = self.run.state is not State.RUNNING
            self._tell()
            if self.progress.current and time.monotonic() >= next_bar:
                self.log.info("%s", self.progress.bar(time.time()))
                next_bar = time.monotonic() + _BAR
            if not is_over:
                time.sleep(_PAUSE)
        self.run.notice()
        outcome = Outcome(self.run, self.progress, self.run.status, self._is_told)
        for diagnostic in outcome.diagnostics:
            # Who waits for a lock tries every few seconds, and says once whose it is.
            for line in () if is_locked_out(diagnostic) else diagnostic.lines():
                self.log.warning("%s", line)
        return outcome

    def _tell(self) -> None:
        """Give the order as often as is due: once, and once more after the grace."""
        if not self._is_told or self.run.state is not State.RUNNING:
            return
        now, times = time.monotonic(), len(self._told_at)
        is_due = not times or (times == 1 and now > self._told_at[0] + self.grace)
        if is_due and self.run.interrupt():
            self._told_at.append(now)
