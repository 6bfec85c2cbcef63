"""How often a cluster is polled: by the age of the youngest waiter, what an answer costs, and what the site allows."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from airflow_provider_soperator.slurm.cluster_records import ClusterConfig

#: Minimum seconds between two polls.
SHORTEST = 1.0
#: Maximum seconds between two polls of a cluster that does not answer.
LONGEST_SILENCE = 120.0

#: The interval of polls as a part of the time that the job has been waited for.
_OF_AGE = 0.1
#: A slow answer costs slurmctld as much; the pause after it is this many times as long.
_OF_EFFORT = 10.0
#: RPCs of one squeue: it asks for the partitions and the federation, too.
_CALLS = 3
#: The part of a rate limit that polling may use; the rest is for other programs of the same user.
_OF_LIMIT = 0.5
#: The interval of polls as a part of MinJobAge, where a job that the queue has forgotten is not found elsewhere.
OF_MEMORY = 1 / 3


@dataclass
class Pace:
    """The seconds until the next poll.

    It depends on the age of the youngest waiter, and not on how many there are or how much changes.

    >>> pace = Pace()
    >>> pace.after_answer(youngest=5, longest=10), pace.after_answer(youngest=45, longest=10)
    (1.0, 4.5)
    """

    shortest: float = SHORTEST
    #: Maximum seconds between two polls, unless the rate limit asks for more.
    rarest: float = math.inf
    _failures: int = 0

    def respect(self, config: ClusterConfig) -> None:
        """Stay well below the cluster's rate limit and, without accounting, the time for which the queue remembers."""
        self.rarest = math.inf if config.has_accounting else config.min_job_age.total_seconds() * OF_MEMORY
        limit = config.rate_limit
        if limit and limit.refill:
            # Requests to accounting do not go to slurmctld.
            self.shortest = max(SHORTEST, _CALLS * limit.period.total_seconds() / limit.refill / _OF_LIMIT)
        else:
            self.shortest = SHORTEST

    def soonest(self, effort: float) -> float:
        """The minimum pause; ``effort`` is how long the last answer took."""
        return max(self.shortest, min(_OF_EFFORT * effort, self.rarest))

    def after_answer(self, *, youngest: float = 0.0, longest: float = 0.0, effort: float = 0.0) -> float:
        """The pause after an answer; ``youngest`` is the age of the youngest waiter, ``longest`` its poll interval."""
        self._failures = 0
        return max(self.soonest(effort), min(longest, _OF_AGE * youngest, self.rarest))

    def after_failure(self) -> float:
        """The pause after a failure: it grows, with jitter, as many clients may wait for the same cluster."""
        self._failures += 1
        longest = min(LONGEST_SILENCE, max(self.shortest, self.rarest), self.shortest * 2.0 ** min(self._failures, 10))
        return random.uniform(0.5, 1.0) * longest
