"""Errors of Slurm: each with Slurm's message, its meaning and a remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from airflow_provider_soperator.errors import ClusterError, LastingError

K = TypeVar("K")


class SlurmError(ClusterError):
    """Slurm rejected a request, or failed to carry it out; ``said`` is Slurm's own message."""

    #: The faulty option of a job, if Slurm names it.
    option = ""
    #: What was printed before the message, where that tells why.
    lines: tuple[str, ...] = ()

    def __init__(self, said: str, command: str = "", remedy: str = "") -> None:
        self.said = said.strip() or "failed without a message"
        self.command = command
        self.remedy = remedy or type(self).remedy
        super().__init__(": ".join(filter(None, (command, self.said, self.remedy))))


class InvalidRequest(SlurmError, ValueError):
    """An invalid request, which was not sent."""


class InvalidOption(SlurmError):
    """A command does not know an option, or rejects its value."""

    remedy = "see the option's spelling and value, and whether this version of Slurm has it"


class NotPermitted(SlurmError, LastingError):
    """The user may not do this."""

    # Slurm's own message, "Invalid user id", is misleading.
    remedy = (
        "the user may not do this: nodes, reservations and other users' jobs need root, SlurmUser or an "
        "accounting AdminLevel (`sacctmgr modify user NAME set AdminLevel=Administrator`)"
    )


class UnknownNode(SlurmError):
    """No such node."""

    remedy = "no node has that name: `sinfo --Node` lists them"


class UnknownJob(SlurmError):
    """No such job (any more): the queue forgets a job some minutes after its end (MinJobAge)."""

    remedy = "no such job in the queue (any more): `sacct -j` may still know it"


class UnknownPartition(SlurmError):
    """No such partition."""

    remedy = "no partition has that name: `sinfo --summarize --all` lists them"


class UnknownReservation(SlurmError):
    """No such reservation."""

    remedy = "no such reservation (any more), or it cannot be used this way: `scontrol show reservation` lists them"


class UnknownUser(SlurmError):
    """No such user on the cluster."""

    remedy = "no user has that name on the cluster"


class JobFinished(SlurmError):
    """The job has ended, or is about to, and cannot be changed."""

    remedy = "the job has ended and can no longer be changed"


class InvalidStateTransition(SlurmError):
    """The state of a node, a job or a reservation does not allow this."""

    remedy = "check its current state; the change may be possible later, or have happened already"


class WholeJobOnly(SlurmError):
    """This is possible for a whole heterogeneous job only, not for one of its parts."""

    remedy = "name the job by the id that sbatch gave it, without +N"


class ReservationConflict(SlurmError):
    """The reservation conflicts with others, or cannot be made or changed this way."""

    remedy = "check its nodes, times and users, and the existing reservations: `scontrol show reservation`"


#: Rejections of a change to a job that has started, ended or been requeued since it was seen.
MOVED_ON = (UnknownJob, JobFinished, InvalidStateTransition)


class LimitExceeded(SlurmError):
    """The request exceeds a limit of an account, a QOS, a partition or the cluster."""

    remedy = "check the limits: `sacctmgr show assoc`, `sacctmgr show qos`, `scontrol show partition`"


class SubmitRefused(SlurmError, LastingError):
    """Slurm rejected a job."""

    def __init__(self, said: str, command: str = "sbatch", remedy: str = "", option: str = "") -> None:
        super().__init__(said, command, remedy)
        self.option = option
        if self.remedy:
            # First, as Airflow's page cuts long lines.
            self.args = (f"{self.remedy} ({command}: {self.said})",)


class TogetherRefused(SlurmError):
    """One of several jobs of a joint submission was rejected, so none of them was submitted.

    ``culprit`` is the name of that job without its key, ``number`` its place among them, and ``__cause__`` its error.
    """

    remedy = "no job of the group was left in the queue; fix this one and submit the group again"

    def __init__(self, culprit: str, number: int, refusal: SlurmError) -> None:
        super().__init__(f"{culprit}: {refusal}")
        self.culprit, self.number, self.__cause__ = culprit, number, refusal


class TransientSlurmError(SlurmError):
    """Slurm could not answer at the moment."""

    retryable = True


class ControllerUnreachable(TransientSlurmError):
    """slurmctld did not answer. It may have carried out the request nevertheless."""

    unsettled = True
    remedy = "check whether slurmctld is up (`scontrol ping`) and how busy it is (`sdiag`)"


class AccountingUnreachable(TransientSlurmError):
    """slurmdbd, or the database behind it, did not answer."""

    remedy = "check whether slurmdbd (`sacctmgr ping`) and its database are up"


class RateLimited(TransientSlurmError):
    """slurmctld accepts no more requests from this user for a moment (``rl_enable``)."""

    remedy = "send fewer requests, or raise rl_bucket_size in SlurmctldParameters"


class TryAgain(TransientSlurmError):
    """Slurm is busy with a conflicting operation."""

    remedy = "try again in a moment"


class QueueFull(TransientSlurmError):
    """slurmctld has as many jobs as it may, which are also those that have ended a while ago (MinJobAge)."""

    remedy = (
        "the queue is full, also with jobs that have ended (MaxJobCount and MinJobAge of `scontrol show config`); "
        "an array with more elements than MaxJobCount never fits"
    )


class SubmitIncomplete(TransientSlurmError):
    """A submission came to no answer, such as without the lock or the queue; some of its jobs may be submitted."""

    unsettled = True
    remedy = "the next try continues with what was submitted"


class NotReached(TransientSlurmError):
    """A job was not submitted, as the time of its request was over before its turn."""

    remedy = "repeat the request"


class SubmissionWithdrawn(SlurmError):
    """A job was not submitted, as its task was told to end before its turn."""

    remedy = "clear the task to have it submitted"


class AccountingDisabled(SlurmError):
    """The cluster keeps no accounting."""

    remedy = "the cluster has no slurmdbd (AccountingStorageType): past jobs cannot be looked up"


class AuthenticationFailed(SlurmError):
    """Slurm rejected the user's credentials."""

    remedy = "check that munged runs with the cluster's key, the clocks agree, and the JWT has not expired"


class CommandNotFound(SlurmError):
    """Slurm's commands are missing."""

    remedy = "Slurm's commands are not on PATH: check that this is a login node, inside the jail"


class UnreadableAnswer(SlurmError):
    """A command's answer was not understood."""

    remedy = "please report this, with the version of Slurm"


#: Messages of all commands. The first rule that matches counts, so failures on the way to Slurm come first.
_GENERAL: dict[type[SlurmError], str] = {
    RateLimited: r"rate limit",
    AccountingDisabled: r"accounting storage is disabled|not running a supported accounting_storage plugin",
    AccountingUnreachable: (
        r"failed to open persistent connection|Sending PersistInit|problem talking to the database"
        r"|unable to connect to database|database connection reference|slurmdbd.*(refused|timed? ?out)"
    ),
    ControllerUnreachable: (
        # "Unexpected message": for no answer at all, as `scontrol update` of a job does not check that there was one.
        # "Unable to query": slurmrestd's message for what it could not send; for rejections it has Slurm's own.
        r"unable to contact slurm controller|socket timed out|communication (connection|shutdown) failure"
        r"|message (send|receive) failure|zero bytes were transmitted|unexpected message received|standby mode"
        r"|connection (refused|timed out|reset by peer)|broken pipe|transport endpoint is not connected"
        r"|could not resolve|unable to establish (controller|config)|unable to query job states"
    ),
    AuthenticationFailed: r"protocol authentication error|authentication credential|munge|token generation failed",
    WholeJobOnly: r"component of heterogeneous job|not heterogeneous job leader",
    TryAgain: r"try again( later)?$|unable to create job record|job locked by another",
    # Before 26.05 sbatch says no more of it, after two minutes of its own tries; slurmrestd says it alone and at once.
    QueueFull: r"(^|submission failed: )resource temporarily unavailable|MaxJobCount limit reached",
    # ESLURM_USER_ID_MISSING, in lower case and with nothing after it: "Invalid user ID" and "...: NAME" are others.
    NotPermitted: r"access/permission denied|permission denied|(?-i:Invalid user id)(?!:)|not permitted",
    CommandNotFound: r"command not found|no such file or directory: '?(s[a-z]+|scontrol)'?$",
    UnknownUser: r"invalid user(?: id)?: |missing unix user|unable to resolve user|invalid user id\b",
    InvalidOption: r"unknown job signal|invalid job state|unrecogni[sz]ed option|invalid (option|field requested)",
}
_ABOUT_THINGS: dict[type[SlurmError], str] = {
    UnknownJob: r"invalid job id|job/step not found|job not found|bad job/step specified",
    JobFinished: r"already (completing|finished)|has already finished|not pending nor running",
    UnknownNode: r"invalid node name|node \S+ not found|invalid host name",
    UnknownPartition: r"invalid partition name|partition \S+ not found",
    UnknownReservation: r"reservation is invalid|reservation \S+ not found|access denied to requested reservation",
    ReservationConflict: (
        r"creating the reservation|reservation (is in use|overlaps|already started|not usable)|duplicate reservation"
        r"|reservation request lacks|no reservation created"
    ),
    InvalidStateTransition: (
        r"invalid node state|job is (pending execution|no longer pending|current suspended|not suspended|in held state)"
        r"|job has already started|job is not (running|finished)|can not be altered|reboot already in progress"
    ),
    LimitExceeded: (
        r"accounting/QOS policy|usage threshold|burst buffer resource limit|max powered up nodes|step limit reached"
    ),
    InvalidOption: r"invalid (input|time|numeric)|too many arguments|unexpected argument|you must specify",
}
#: Messages of sbatch that name no option, by the option that they are about.
_ABOUT_OPTIONS = {
    "--partition": r"invalid partition",
    "--account": r"(invalid )?(account|parent account)",
    "--qos": r"\bqos\b",
    "--reservation": r"reservation",
    "--nodelist": r"node name",
    "--nodes": r"node (configuration|count)",
    "--array": r"job array",
    "--dependency": r"dependency",
    "--constraint": r"feature specification",
    "--gres": r"generic resource|\bgres\b",
    "--licenses": r"license",
    "--mem": r"memory specification",
    "--time": r"time limit",
    "--wckey": r"wckey",
    "remote_script": r"unable to open file",
    "script": r"script",
}
#: Remedies for options that were rejected, unless the cluster tells more.
_OF_OPTIONS = {
    "--account": "`sacctmgr show assoc user=NAME` lists them; `sacctmgr add user NAME account=ACCOUNT` adds one",
    "--partition": "`sinfo --summarize --all` lists the partitions, and `scontrol show partition` who may use them",
    "--qos": "`sacctmgr show assoc user=NAME format=account,qos` lists what the user may use",
    "--reservation": UnknownReservation.remedy,
    "--nodelist": UnknownNode.remedy,
    "remote_script": "it is not on the cluster, or may not be read",
    "--constraint": "no node has such features: `sinfo --format='%N %f'` lists them",
}
#: Options in messages of sbatch.
_NAMED_OPTION = r"(--[a-z][a-z-]*)", r"unrecognized option '(--?[^'=]+)"
#: Messages about limits in a submission.
_LIMITS = r"policy|limit|usage threshold|more processors requested than permitted"
#: Messages of transient errors, as an extended regular expression that ignores case.
PASSING = "|".join(pattern for error, pattern in _GENERAL.items() if issubclass(error, TransientSlurmError))
#: Likewise of limits that may let some of many jobs pass.
COUNT_LIMITS = f"accounting/QOS policy|unable to create job record|try again|{_GENERAL[QueueFull]}"


#: Stands for the command where a submission as a whole fails: only sbatch's own answer about a job rejects it.
SUBMISSION = "submission"


def from_output(argv: Sequence[str], status: int, stdout: bytes, stderr: bytes) -> SlurmError:
    command = command_name(argv)
    said = _words(stderr) or _words(stdout) or f"ended with status {status}"
    if status == 127:
        return CommandNotFound(said, command)
    return classify(command, said)


def classify(command: str, said: str) -> SlurmError:
    """The error for Slurm's message.

    Without a matching rule it is ``SlurmError``, ``SubmitRefused`` for sbatch, ``SubmitIncomplete`` for a submission.

    >>> classify(SUBMISSION, "mktemp: failed to create directory: No space left on device").retryable
    True
    """
    error = _first(_GENERAL, said)
    if error is NotPermitted and command == "sbatch":
        return error(said, command, "see whether the partition is for this user, and for jobs without a reservation")
    if error and not (command == "sbatch" and error is InvalidOption):
        return error(said, command)
    if command == "sbatch":
        return _refused(said)
    if command == SUBMISSION:
        return SubmitIncomplete(said, command)
    return (_first(_ABOUT_THINGS, said) or SlurmError)(said, command)


def _first(rules: Mapping[K, str], said: str) -> K | None:
    return next((one for one, pattern in rules.items() if re.search(pattern, said, re.IGNORECASE)), None)


def command_name(argv: Sequence[str]) -> str:
    """A command's name for messages: not that of the shell that prepares its environment."""
    if argv and argv[0] in ("bash", "sh", "env"):
        return next((word for word in argv[1:] if re.fullmatch(r"s[a-z]+", word)), argv[0])
    return argv[0] if argv else ""


def _refused(said: str) -> SlurmError:
    if re.search(_LIMITS, said, re.IGNORECASE) and not re.search(r"--|time limit is invalid|specification", said):
        return LimitExceeded(said, "sbatch")
    named = (found[1] for pattern in _NAMED_OPTION for found in re.finditer(pattern, said) if found[1] != "--help")
    remedy = InvalidOption.remedy if (option := next(named, "")) else ""
    option = option or _first(_ABOUT_OPTIONS, said) or ""
    return SubmitRefused(said, remedy=remedy or _OF_OPTIONS.get(option, ""), option=option)


def _words(output: bytes) -> str:
    """The meaningful lines, without the name of the command and the log level."""
    lines = (line.strip() for line in output.decode(errors="backslashreplace").splitlines())
    kept = (re.sub(r"^((s[a-z_]+|slurm_\w+)?:? ?(error|fatal): ?|sbatch: )", "", line) for line in lines)
    return "; ".join(dict.fromkeys(line for line in kept if line and not line.startswith('Try "')))
