"""One run of pytest in an order of its own, and what all runs together tell of each test."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: Seconds for pytest to put down what its tests have put up.
PATIENCE = 180
#: As in ``make test``, for as many processes as are asked for.
SIDE_BY_SIDE = ("--dist=loadgroup", "--no-loadscope-reorder")


@dataclass
class Run:
    """A run, and the outcome of each of its tests with the first line of what went wrong."""

    name: str
    #: The whole command that runs it again.
    again: str
    log: Path
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    status: int = 0

    def perform(self, arguments: Sequence[str]) -> None:
        results = self.log.with_suffix(".jsonl")
        results.touch()
        command = [sys.executable, "-m", "pytest", "-p", "tests.order", "-p", "tests.flaky.results", *arguments]
        environment = os.environ | {"FLAKY_RESULTS": str(results)}
        with self.log.open("wb") as log:
            # In a session of its own, so that it is interrupted once: a second time would end its tidying up.
            pytest = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
            try:
                self.status = pytest.wait()
            except KeyboardInterrupt:
                pytest.send_signal(signal.SIGINT)
                try:
                    self.status = pytest.wait(PATIENCE)
                finally:
                    pytest.kill()
                raise
            finally:
                self._read(results)

    def _read(self, results: Path) -> None:
        for line in results.read_text().splitlines():
            found = json.loads(line)
            self.outcomes[found["test"]] = (found["outcome"], found["said"])

    @property
    def failed(self) -> bool:
        # A run that was cut short has an exit status, and may have no test that failed.
        return bool(self.status) or any(outcome not in ("passed", "skipped") for outcome, _ in self.outcomes.values())

    def summary(self) -> str:
        counts = Counter(outcome for outcome, _ in self.outcomes.values())
        said = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no test has ended"
        return f"{said}; pytest ended with {self.status}" if self.status not in (0, 1) else said


def unsteady(runs: Sequence[Run]) -> dict[str, list[tuple[Run, str, str]]]:
    """By test: what became of it in each run, for those that have not passed each time."""
    found: dict[str, list[tuple[Run, str, str]]] = {}
    for test in sorted({test for run in runs for test in run.outcomes}):
        ends = [(run, *run.outcomes.get(test, ("missing", "it has not begun"))) for run in runs]
        # One that is skipped each time cannot run on this machine.
        if {outcome for _, outcome, _ in ends} not in ({"passed"}, {"skipped"}):
            found[test] = ends
    return found


def table(runs: Sequence[Run]) -> Iterator[str]:
    """A line for each such test, with lines for each way in which it has failed."""
    tests = unsteady(runs)
    if tests:
        yield f"passed failed errored  of {len(runs)}"
    for test, ends in tests.items():
        counts = Counter(outcome for _, outcome, _ in ends)
        yield f"{counts['passed']:6} {counts['failed']:6} {counts['errored']:7}  {test}"
        ways: dict[str, tuple[str, list[str]]] = {}
        for run, outcome, said in ends:
            if outcome != "passed":
                # The same failure has other jobs, ports and moments each time.
                key = re.sub(r"\d+", "0", f"{outcome}: {said}")
                ways.setdefault(key, (f"{outcome}: {said}", []))[1].append(run.name)
        for said, names in ways.values():
            yield f"{'':24}in {', '.join(names)}: {said}"
    for run in runs:
        if run.failed:
            yield f"\n{run.name}: {run.summary()}; {run.log}\n  again: {run.again}"
