"""``python -m tests.simulation.mends``: takes mends out of a copy of the provider, one at a time, and plays stories.

A rule that no story breaks without its mend proves nothing. Most are told by one of a few hundred stories; some take an
exact conjunction, and several thousand, as the wait for the lock, and polls without accounting.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PROVIDER = "airflow_provider_soperator"


@dataclass(frozen=True)
class Mend:
    """What the provider does since a defect was found, and how it was before: pairs of texts in one module."""

    what: str
    module: str
    pairs: tuple[tuple[str, str], ...]


MENDS = (
    Mend(
        "a job that is followed is known by its key",
        "client/job_run.py",
        (("name=submitted.key.suffix_of(submitted.id),", 'name="",'),),
    ),
    Mend(
        "a job that is cancelled is known by its key",
        "client/queue.py",
        (("any((jobs[job], job) in keys.of(part.name, part.id) for part in parts)", "bool(parts)"),),
    ),
    Mend(
        "without accounting elements that are missing are missed",
        "client/job_tracker.py",
        (("        self._expect(self._expected)\n", ""),),
    ),
    Mend(
        "a lock that is not free is no refusal",
        "slurm/requests/submission.py",
        (("errors.from_output((errors.SUBMISSION,),", 'errors.from_output(("sbatch",),'),),
    ),
    Mend(
        "a job that looks lost is watched, and not submitted anew",
        "client/submissions.py",
        (("succeeded if status.is_finished else", "succeeded if status.is_over else"),),
    ),
    Mend(
        "a field that cannot be read concerns its own job",
        "slurm/requests/commands.py",
        (("except (OSError, OverflowError, ValueError) as error:", "except ZeroDivisionError as error:"),),
    ),
    Mend(
        "names with blanks and accents can be asked for",
        "slurm/requests/accounting.py",
        (
            (
                """re.compile(r"(?! )(?:(?![,'\\"\\[\\]\\\\])[ -~À-ÿ])+(?<! )")""",
                """re.compile("[A-Za-z0-9._:@+-]+")""",
            ),
        ),
    ),
    Mend(
        "the wait for the lock does not count as work",
        "slurm/requests/submission.py",
        (("timeout=LOCK_WAIT + TIMEOUT", "timeout=TIMEOUT"),),
    ),
    Mend(
        "without accounting polls come before the queue forgets",
        "client/pace.py",
        (("OF_MEMORY = 1 / 3", "OF_MEMORY = math.inf"),),
    ),
    Mend(
        "each element of an array is missed by itself",
        "client/job_tracker.py",
        (("before[key] + spent if key in before else 0.0", "max(before.values(), default=-spent) + spent"),),
    ),
    Mend(
        "an array is not lost while elements of it run",
        "client/job_tracker.py",
        (
            (
                "return all(job and job.state.is_finished for key, job in self._known.items() if key not in missing)",
                "return True",
            ),
        ),
    ),
    Mend(
        "clocks may be apart by an hour",
        "slurm/submission_keys.py",
        (("CLOCKS = timedelta(hours=1)", "CLOCKS = timedelta(0)"),),
    ),
    Mend(
        "a key belongs to one run",
        "slurm/submission_keys.py",
        (("if begun else []", "if False else []"),),
    ),
    Mend(
        "whoever polls cancels what was withdrawn",
        "client/poller.py",
        (("                await self._ask(CancelWithdrawn())\n", "                pass\n"),),
    ),
    Mend(
        "an element of mapped tasks that is missing is lost, and not cancelled",
        "client/job_tracker.py",
        (("key[0] in self._submitted\n", "False\n"),),
    ),
    Mend(
        "a submission waits while the cluster is away",
        "client/pace.py",
        (("if self._log is None or", "if True or"),),
    ),
)


def without(mend: Mend, seeds: int) -> str:
    """What the first story says that breaks a rule; or how many stories have broken none."""
    with tempfile.TemporaryDirectory(prefix="without-a-mend-") as folder:
        for part in (PROVIDER, "sandbox", "tests"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        module = Path(folder) / PROVIDER / mend.module
        text = module.read_text()
        for now, before in mend.pairs:
            assert now in text, f"{mend.module} has no {now!r} any more: {mend.what}"
            text = text.replace(now, before)
        module.write_text(text)
        words = [sys.executable, "-m", "tests.simulation", "--seeds", str(seeds)]
        environment = {**os.environ, "PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        played = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    first, *_, last = (played.stdout.splitlines() or [played.stderr[-500:]]) * 2
    return first if first.startswith("seed ") else f"NOT FOUND: {last}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mends", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1500, metavar="N", help="stories for each (1500)")
    parser.add_argument("--only", default="", metavar="WORDS", help="mends with these words")
    given = parser.parse_args()
    for mend in MENDS:
        if given.only in mend.what:
            print(f"{mend.what} -> {without(mend, given.seeds)}", flush=True)


if __name__ == "__main__":
    main()
