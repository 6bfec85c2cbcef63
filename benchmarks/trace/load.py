"""The load of a month, from a seed: jobs in the shape of published traces, and requests with days, weeks and bursts.

Jobs are many and small, and a few have most of the work, as in the traces of Philly, Helios and Alibaba: seven of ten
have one GPU, the median lasts ten minutes, and the mean an hour and more.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_provider_soperator.capacity.loads import MetricLoad, ServiceLoad
from airflow_provider_soperator.capacity.month import DAY, Month, MonthJob, needs_of

#: GPUs of a job, and how often jobs have so many.
_SIZES, _OFTEN = (1, 2, 4, 8, 16, 32), (60, 12, 10, 14, 3, 1)
#: The first minute: a Monday's.
_START = datetime(2026, 9, 7, tzinfo=timezone.utc)


@dataclass(frozen=True)
class Load:
    """Jobs by when they are submitted, and requests per second in each minute."""

    jobs: list[MonthJob]
    requests: list[float]

    def month(self, service: ServiceLoad | MetricLoad, wrong: float = 0.0) -> Month:
        """The month of a service; ``wrong``: by how much its requests are too low."""
        return Month(self.jobs, needs_of(service, (rate * (1 - wrong) for rate in self.requests)), _START)


def load(seed: int, *, gpus: int, busy: float, peak: float, days: int = 28) -> Load:
    """Jobs that need ``busy`` of so many GPUs on average, and ``peak`` requests per second on usual days."""
    return Load(_jobs(random.Random(f"jobs {seed}"), gpus * busy, days), _requests(random.Random(seed), peak, days))


def _jobs(dice: random.Random, gpus: float, days: int) -> list[MonthJob]:
    drawn: list[tuple[int, int]] = []
    wanted, work = gpus * days * DAY, 0
    while work < wanted or len(drawn) < 50_000 * days // 28:
        size = dice.choices(_SIZES, _OFTEN)[0]
        # Larger jobs last longer.
        minutes = min(2 * DAY, max(1, round(dice.lognormvariate(2.0 + 0.25 * math.log2(size), 1.7))))
        drawn.append((size, minutes))
        work += size * minutes
        if len(drawn) > 400_000:
            break
    # So many jobs as there are have the work that was asked for.
    scale = wanted / work
    jobs = []
    for number, (size, minutes) in enumerate(drawn):
        minutes = max(1, round(minutes * scale))
        limit = min(7 * DAY, math.ceil(minutes * dice.uniform(1.2, 4) / 15) * 15)
        at = _submitted(dice, days)
        jobs.append(MonthJob(number, at, size, minutes, limit, dice.random() < 0.5))
    return sorted(jobs, key=lambda job: job.submitted)


def _submitted(dice: random.Random, days: int) -> int:
    """A minute at which people submit: mostly by day, and on weekdays."""
    while True:
        at = dice.randrange(days * DAY)
        hour, weekday = at % DAY / 60, at // DAY % 7
        if dice.random() < (0.35 + 0.65 * (9 <= hour < 19)) * (1 if weekday < 5 else 0.45):
            return at


def _requests(dice: random.Random, peak: float, days: int) -> list[float]:
    rates, drift = [], 0.0
    bursts = [0.0] * (days * DAY)
    for _ in range(days):
        # One a day: up within five minutes, and over within the hour.
        begin, length, height = dice.randrange(days * DAY), dice.randrange(20, 60), dice.uniform(0.05, 0.2)
        for minute in range(begin, min(begin + length, days * DAY)):
            bursts[minute] = max(bursts[minute], height * min(1.0, (minute - begin + 1) / 5))
    for minute in range(days * DAY):
        hour, weekday = minute % DAY / 60, minute // DAY % 7
        day = 0.25 + 0.75 * math.exp(-(((hour - 14.5) / 4.5) ** 2))
        drift = 0.995 * drift + dice.gauss(0, 0.006)
        rates.append(peak * max(0.02, day * (1 if weekday < 5 else 0.6) * (1 + drift) + bursts[minute]))
    return rates
