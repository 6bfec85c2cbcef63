"""Errors: Slurm's words, as both versions of the sandbox say them, lead to one cause and one remedy."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm import errors
from airflow_provider_soperator.slurm.errors import SlurmError, from_output

SAID: list[tuple[str, str, type[SlurmError]]] = [
    (
        "squeue",
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        errors.ControllerUnreachable,
    ),
    (
        "sinfo",
        "slurm_load_partitions: Unable to contact slurm controller (connect failure)",
        errors.ControllerUnreachable,
    ),
    (
        "sdiag",
        "slurm_get_statistics: Unable to contact slurm controller (connect failure)",
        errors.ControllerUnreachable,
    ),
    (
        "sbatch",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        errors.ControllerUnreachable,
    ),
    (
        "sbatch",
        "sbatch: error: Batch job submission failed: Connection reset by peer",
        errors.ControllerUnreachable,
    ),
    (
        "scancel",
        "scancel: error: Kill job error on job id 1: Unable to contact slurm controller",
        errors.ControllerUnreachable,
    ),
    (
        "scontrol",
        "slurm_update error:Unable to contact slurm controller (connect failure)",
        errors.ControllerUnreachable,
    ),
    ("scontrol", "Unexpected message received for job 721", errors.ControllerUnreachable),
    ("sbatch", "sbatch: Unexpected message received for job 721", errors.ControllerUnreachable),
    ("slurmrestd", "Unable to query job states", errors.ControllerUnreachable),
    (
        "sacct",
        "sacct: error: _open_persist_conn: failed to open persistent connection to host:127.0.0.1:27402: Connection "
        "refused\nsacct: error: Sending PersistInit msg: Connection refused\n"
        "sacct: error: Problem talking to the database: Connection refused",
        errors.AccountingUnreachable,
    ),
    (
        "sacctmgr",
        "sacctmgr: error: _open_persist_conn: failed to open persistent connection to host:127.0.0.1:27402: Connection "
        "refused\nsacctmgr: error: Sending PersistInit msg: Connection refused",
        errors.AccountingUnreachable,
    ),
    ("sacct", "Slurm accounting storage is disabled", errors.AccountingDisabled),
    ("squeue", "slurm_load_jobs error: Rate limit exceeded, please retry momentarily", errors.RateLimited),
    (
        "sbatch",
        "sbatch: error: Batch job submission failed: Rate limit exceeded, please retry later",
        errors.RateLimited,
    ),
    ("sbatch", "sbatch: error: Batch job submission failed: Unable to create job record, try again", errors.TryAgain),
    (
        "sbatch",
        "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable",
        errors.QueueFull,
    ),
    ("sbatch", "sbatch: error: Batch job submission failed: MaxJobCount limit reached", errors.QueueFull),
    ("sbatch", "Resource temporarily unavailable", errors.QueueFull),
    ("squeue", "slurm_load_jobs error: Protocol authentication error", errors.AuthenticationFailed),
    ("scontrol", "slurm_update error: Invalid user id", errors.NotPermitted),
    ("scontrol", "slurm_update error:Invalid user id", errors.NotPermitted),
    ("scontrol", "Invalid user id for job 10\nslurm_suspend error: Invalid user id", errors.NotPermitted),
    ("scontrol", "scontrol: error: slurm_fetch_token: error with request: Invalid user id", errors.NotPermitted),
    ("scancel", "scancel: error: Kill job error on job id 9: Access/permission denied", errors.NotPermitted),
    ("sbatch", "sbatch: error: Batch job submission failed: Access/permission denied", errors.NotPermitted),
    ("sacct", "sacct: error: Invalid user id: nope", errors.UnknownUser),
    ("squeue", "squeue: error: Invalid user: nope", errors.UnknownUser),
    ("squeue", "slurm_load_jobs error: Invalid job id specified", errors.UnknownJob),
    (
        "scontrol",
        "Invalid job id specified for job 999999\nslurm_suspend error:Invalid job id specified",
        errors.UnknownJob,
    ),
    (
        "scontrol",
        "Job has already finished for job 1\nslurm_suspend error: Job has already finished",
        errors.JobFinished,
    ),
    (
        "scancel",
        "scancel: error: Kill job error on job id 4+1: Operation not permitted on individual component of "
        "heterogeneous job",
        errors.WholeJobOnly,
    ),
    ("scontrol", "Job is pending execution for job 9", errors.InvalidStateTransition),
    ("scontrol", "scontrol_power_nodes error:Invalid node name specified", errors.UnknownNode),
    ("scontrol", "slurm_update error: Invalid node state specified", errors.InvalidStateTransition),
    ("scontrol", "too many arguments for keyword:power", errors.InvalidOption),
    ("scontrol", "slurm_update error: Requested reservation is invalid", errors.UnknownReservation),
    ("scontrol", "Error creating the reservation: Requested nodes are busy", errors.ReservationConflict),
    ("scontrol", "Error creating the reservation: Invalid time specified", errors.ReservationConflict),
    ("scontrol", "Error creating the reservation: Invalid user id", errors.NotPermitted),
    (
        "sbatch",
        "sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: Job violates "
        "accounting/QOS policy (job submit limit, user's size and/or time limits)",
        errors.LimitExceeded,
    ),
    ("sacct", 'sacct: error: Invalid field requested: "nope"', errors.InvalidOption),
    ("scancel", "Unknown job signal: FOO", errors.InvalidOption),
    ("scontrol", "Something that nobody has seen before", SlurmError),
]


@pytest.mark.parametrize(("command", "said", "expected"), SAID)
def test_words_lead_to_their_cause(command: str, said: str, expected: type[SlurmError]) -> None:
    error = from_output((command,), 1, b"", said.encode())
    assert type(error) is expected
    assert error.command == command
    assert error.retryable == issubclass(expected, errors.TransientSlurmError)
    assert "error:" not in error.said.partition(" ")[0]


@pytest.mark.parametrize(
    ("said", "option"),
    [
        ("sbatch: error: invalid partition specified: nope", "--partition"),
        ("Time limit specification required, but not provided", "--time"),
        (
            "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified",
            "--account",
        ),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "--qos"),
        ("sbatch: error: Batch job submission failed: Invalid node name specified", "--nodelist"),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", "--constraint"),
        ("sbatch: error: Invalid --time specification", "--time"),
        (
            "sbatch: unrecognized option '--no-such-option'\nTry \"sbatch --help\" for more information",
            "--no-such-option",
        ),
        ('sbatch: error: Invalid numeric value "x" for --cpus-per-task.', "--cpus-per-task"),
        ("sbatch: error: Batch job submission failed: Job dependency problem", "--dependency"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", "--nodes"),
    ],
)
def test_what_sbatch_found_fault_with(said: str, option: str) -> None:
    error = from_output(("bash", "-c", "...", "sbatch", "--parsable"), 1, b"", said.encode())
    assert isinstance(error, errors.SubmitRefused)
    assert error.option == option
    assert not error.retryable
    assert error.command == "sbatch"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("sbatch: unrecognized option '--nope=3'", "see the option's spelling and value"),
        ("sbatch: error: Invalid --mail-type specification", "see the option's spelling and value"),
        ("sbatch: error: Batch job submission failed: Requested reservation is invalid", "no such reservation"),
        ("sbatch: error: Batch job submission failed: Invalid node name specified", "no node has that name"),
        ("sbatch: error: Batch job submission failed: Invalid feature specification", "no node has such features"),
        ("sbatch: error: Unable to open file /a.sh", "it is not on the cluster"),
    ],
)
def test_what_sbatch_refuses_has_a_remedy_in_front(said: str, told: str) -> None:
    error = from_output(("sbatch",), 1, b"", said.encode())
    assert str(error).startswith(told)
    assert str(error).count("sbatch: ") == 1


def test_commands_that_are_not_there() -> None:
    error = from_output(("squeue",), 127, b"", b"sh: 1: squeue: not found")
    assert isinstance(error, errors.CommandNotFound)


def test_what_goes_to_stdout_counts_if_nothing_else_was_said() -> None:
    assert isinstance(from_output(("scontrol",), 1, b"Node nope not found\n", b""), errors.UnknownNode)
    assert "status 3" in str(from_output(("scontrol",), 3, b"", b""))


def test_words_in_no_encoding_are_shown() -> None:
    assert "\\xff" in from_output(("sbatch",), 1, b"", b"sbatch: error: odd \xff").said


def test_every_error_says_what_to_do() -> None:
    """Except where Slurm's own words are all there is to say."""
    silent = {SlurmError, errors.SubmitRefused, errors.InvalidRequest, errors.TransientSlurmError}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SlurmError)]
    assert {kind for kind in kinds if not kind.remedy} == silent


@pytest.mark.parametrize("said", ["Access/permission denied", "User's group not permitted to use this partition"])
def test_a_partition_that_is_not_for_the_job_is_no_matter_of_an_administrators_rights(said: str) -> None:
    error = from_output(("sbatch",), 1, b"", f"sbatch: error: Batch job submission failed: {said}".encode())
    assert "see whether the partition is for this user" in str(error)
    assert "AdminLevel" not in str(error)
