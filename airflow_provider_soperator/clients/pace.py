"""How often a cluster is asked: soon after a submission, seldom later, and never more than it can bear."""

from __future__ import annotations

import random
from dataclasses import dataclass

from airflow_provider_soperator.slurm.records import ClusterConfig

#: Seconds between two questions at the least.
SHORTEST = 1.0
#: Seconds between two tries of a cluster that does not answer, at the most.
LONGEST_SILENCE = 120.0

#: A job is asked for in intervals of so much of the time that it has been waited for.
_OF_AGE = 0.1
#: An answer that takes long costs slurmctld as much; the pause after it is so many times as long.
_OF_EFFORT = 10.0
#: What slurmctld counts when the queue is asked: squeue wants the partitions and the federation as well.
_CALLS = 3
#: Of what a rate limit lets through, so much is left to others of the same user.
_OF_LIMIT = 0.5


@dataclass
class Pace:
    """The seconds until the next question.

    It depends on the age of the youngest waiter, and not on how many there are or how much changes.

    >>> pace = Pace()
    >>> pace.after_answer(youngest=5, longest=10), pace.after_answer(youngest=45, longest=10)
    (1.0, 4.5)
    """

    shortest: float = SHORTEST
    _failures: int = 0

    def respect(self, config: ClusterConfig) -> None:
        """Stay well below a site's rate limit."""
        limit = config.rate_limit
        if limit and limit.refill:
            # Questions to accounting do not go to slurmctld.
            self.shortest = max(SHORTEST, _CALLS * limit.period.total_seconds() / limit.refill / _OF_LIMIT)
        else:
            self.shortest = SHORTEST

    def soonest(self, effort: float) -> float:
        """However urgent it is; ``effort`` is how long the last answer took."""
        return max(self.shortest, _OF_EFFORT * effort)

    def after_answer(self, *, youngest: float = 0.0, longest: float = 0.0, effort: float = 0.0) -> float:
        """``youngest`` is the age of the youngest waiter, ``longest`` what the users ask for."""
        self._failures = 0
        return max(self.soonest(effort), min(longest, _OF_AGE * youngest))

    def after_failure(self) -> float:
        """Longer with each failure, and spread, as many may wait for the same cluster to come back."""
        self._failures += 1
        longest = min(LONGEST_SILENCE, self.shortest * 2.0 ** min(self._failures, 10))
        return random.uniform(0.5, 1.0) * longest
