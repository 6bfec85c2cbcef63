"""Submit jobs exactly once: whatever breaks, and whoever tries at the same time, each key has one job.

On the cluster it is one program: under a lock it asks queue and accounting for the keys, submits what is not there, and
asks again. It does not end with the connection, so a submission that was cut off is completed, and the next try, which
waits for the lock, finds it.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from airflow_provider_soperator.slurm.errors import InvalidRequest, SlurmError, UnreadableAnswer, from_output
from airflow_provider_soperator.slurm.ids import JobId
from airflow_provider_soperator.slurm.keys import MARK, SubmissionKey, key_of
from airflow_provider_soperator.slurm.requests.accounting import Accounting
from airflow_provider_soperator.slurm.requests.base import Command, CommandOutput, Request

if TYPE_CHECKING:
    from airflow_provider_soperator.slurm.job import BatchJob

#: Jobs in one go; a site's rate limit, and a worker that wants to be told of progress, ask for no more.
MOST = 500

#: How far back accounting is searched unless the caller knows better.
LOOK_BACK = timedelta(days=7)

_PROGRAM = r"""
# The one who asked may be gone; what has been begun is finished all the same.
trap '' HUP PIPE
work=$(mktemp -d) || exit 1
trap 'rm -rf -- "$work"' EXIT
# From a file bash reads in blocks, from a pipe byte by byte.
cat >"$work/in" && exec 8<"$work/in" || exit 1
field() { IFS= read -r -d '' -u 8 "$1"; }
field mark; field fresh
past=()
field words; for ((word = 0; word < words; word++)); do field one; past+=("$one"); done
field count

lock=${HOME:-/tmp}/.cache/airflow-soperator
mkdir -p -m 700 "$lock" && exec 9>>"$lock/submit.lock" && flock -w 120 9 ||
    { echo "sbatch: error: the lock $lock/submit.lock cannot be had" >&2; exit 75; }

# Both read lines of an id, the mark and a name; the lowest id of each key is the one that counts.
declare -A known
learn() {
    local id name key
    while read -r id name; do
        [[ $id == *"$mark" && $name == *.af-* ]] || continue
        # Of an array and of a heterogeneous job, the id of the whole.
        id=${id%"$mark"} id=${id%%[_+]*} key=${name##*.af-}
        [[ -n ${known[$key]} && ${known[$key]} -le $id ]] || known[$key]=$id
    done <"$1"
}
# The queue has what accounting does not: jobs that were never eligible, and those of the last seconds.
queue() {
    squeue --all --states=all --me --noheader --format="%F$mark %j" >"$work/queue" 2>"$work/err" </dev/null
}
queue || { status=$?; cat "$work/err" >&2; exit "$status"; }
learn "$work/queue"
if [ "$fresh" = no ]; then
    past+=(--noheader --parsable2 --delimiter="$mark " --format=jobid,jobname)
    before=${#known[@]}
    if "${past[@]}" >"$work/past" 2>"$work/err" </dev/null; then
        learn "$work/past"
        # What accounting alone has may be the loser of a race on another login node: then the winner is in the queue.
        if [ ${#known[@]} -gt "$before" ] && queue; then learn "$work/queue"; fi
    elif ! grep -qi 'accounting storage is disabled' "$work/err"; then
        cat "$work/err" >&2
        exit 69
    fi
fi

# A few at a time: most of a submission is waiting, here for sbatch to start and there for slurmctld.
submitted=() under_way=()
settle() {
    local line item key status said id
    wait
    for line in "${under_way[@]}"; do
        read -r item key <<<"$line"
        status=$(<"$work/status.$item")
        if [ "$status" = 0 ]; then
            # Plugins of sbatch may print lines of their own before it.
            mapfile -t said <"$work/out.$item"
            id=${said[-1]%%;*}
            known[$key]=$id
            submitted+=("$item $key $id")
        else
            echo "$item failed $status $(base64 -w0 <"$work/err.$item")"
        fi
    done
    under_way=()
}
for ((item = 0; item < count; item++)); do
    field key; field form; field words
    argv=()
    for ((word = 0; word < words; word++)); do field one; argv+=("$one"); done
    field body
    if [ -n "${known[$key]}" ]; then
        echo "$item adopted ${known[$key]}"
        continue
    fi
    case $form in
        text) printf %s "$body" >"$work/body.$item" ;;
        base64) printf %s "$body" | base64 -d >"$work/body.$item" ;;
    esac
    {
        "${argv[@]}" <"$work/body.$item" >"$work/out.$item" 2>"$work/err.$item"
        echo $? >"$work/status.$item"
    } &
    under_way+=("$item $key")
    [ ${#under_way[@]} -lt 4 ] || settle
done
settle

# A lock is worth what the file system makes of it. If somebody has submitted the same on another login node, the
# lower id stays: the other one comes to the same conclusion.
if [ ${#submitted[@]} -gt 0 ] && queue; then learn "$work/queue"; fi
for line in "${submitted[@]}"; do
    read -r item key id <<<"$line"
    if [ "${known[$key]}" != "$id" ]; then
        scancel "$id" </dev/null
        echo "$item adopted ${known[$key]}"
    else
        echo "$item submitted $id"
    fi
done
"""


@dataclass(frozen=True)
class Submitted:
    """What has become of one job: its id, or why it was refused.

    ``adopted`` says that a job with this key was there already.
    """

    id: JobId | None
    adopted: bool = False
    error: SlurmError | None = None


@dataclass(frozen=True, kw_only=True)
class SubmitOnce(Request[tuple[Submitted, ...]]):
    """Submit jobs whose names end in a key, but for those that are there already. One answer for each, in order.

    A refusal of one does not keep the others from being submitted. An exception means that nothing is known: ask again.
    """

    jobs: tuple[BatchJob, ...]
    #: When the first try of any of these keys can have been at the earliest.
    since: datetime | None = None
    #: There cannot have been an earlier try, so accounting is not asked.
    fresh: bool = False
    mark: str = field(default_factory=lambda: f"~{secrets.token_hex(8)}", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= len(self.jobs) <= MOST:
            raise InvalidRequest(f"{len(self.jobs)} jobs are to be submitted at once; 1 to {MOST} can be")
        keys = self.submission_keys()
        if len(set(keys)) < len(keys):
            raise InvalidRequest("two of these jobs have the same key, so only one could ever be submitted")

    def submission_keys(self) -> tuple[SubmissionKey, ...]:
        keys = [key_of(job.name or "") for job in self.jobs]
        if None in keys:
            raise InvalidRequest(f"the name of a job to submit once must end in {MARK!r} and a key")
        return tuple(key for key in keys if key)

    def again(self) -> SubmitOnce:
        """What makes it once: the next try finds what the first has done."""
        return replace(self, fresh=False)

    def command(self) -> Command:
        return Command(("bash", "-c", _PROGRAM, "sbatch"), stdin=b"\0".join(self._fields()) + b"\0")

    def read(self, answer: CommandOutput) -> tuple[Submitted, ...]:
        if answer.status:
            raise from_output(("sbatch", "--parsable"), answer.status, answer.stdout, answer.stderr)
        found = dict(self._outcome(line) for line in answer.text.splitlines())
        if found.keys() != set(range(len(self.jobs))):
            raise UnreadableAnswer(f"{len(found)} answers for {len(self.jobs)} jobs", "sbatch")
        return tuple(found[number] for number in range(len(self.jobs)))

    def _fields(self) -> Iterator[bytes]:
        since = self.since or datetime.now(timezone.utc) - LOOK_BACK
        past = Accounting(names=tuple(job.name or "" for job in self.jobs), since=since).selection()
        for text in (self.mark, "yes" if self.fresh else "no", str(len(past)), *past, str(len(self.jobs))):
            yield text.encode()
        for job, key in zip(self.jobs, self.submission_keys(), strict=True):
            submission = job.submission()
            plain = b"\0" not in submission.stdin
            yield from (key.text.encode(), b"text" if plain else b"base64", str(len(submission.argv)).encode())
            yield from (word.encode() for word in submission.argv)
            yield submission.stdin if plain else base64.b64encode(submission.stdin)

    def _outcome(self, line: str) -> tuple[int, Submitted]:
        number, kind, rest = line.split(" ", 2)
        if kind == "failed":
            status, _, said = rest.partition(" ")
            argv = self.jobs[int(number)].submission().argv
            error = from_output(("sbatch", *argv[1:]), int(status), b"", base64.b64decode(said))
            return int(number), Submitted(None, error=error)
        return int(number), Submitted(JobId.parse(rest), adopted=kind == "adopted")
