"""What is said of accounts, QOS and partitions that Slurm has refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_soperator.client.refusals import explained_refusal
from airflow_provider_soperator.slurm.cluster_records import Association, Partition, UserRights
from airflow_provider_soperator.slurm.errors import SubmitRefused
from airflow_provider_soperator.slurm.job import BatchJob

ALICE = UserRights(
    user="alice",
    default_account="vision",
    associations=(
        Association("vision", qos=("normal", "slow")),
        Association("shared", qos=("normal", "fast")),
        Association("night", "spare", ("normal",)),
    ),
)
NOBODY = UserRights(user="bob", is_known=False)
HOMELESS = UserRights(user="cy", associations=(Association("vision"),))
PARTITIONS = (Partition(name="main"), Partition(name="spare"), Partition(name="hidden", is_hidden=True))


@pytest.mark.parametrize(
    ("option", "asked", "rights", "says"),
    [
        (
            "--account",
            {"account": "visoin"},
            ALICE,
            "account 'visoin': did you mean 'vision'? user alice may use vision (default), shared, night",
        ),
        ("--account", {"account": "root"}, ALICE, "account 'root': user alice may use vision"),
        ("--account", {"account": "night"}, ALICE, "user alice may use account night in partition spare only"),
        ("--account", {}, HOMELESS, "no account is given, and the user has no default account: user cy may use vision"),
        ("--account", {"account": "vision"}, NOBODY, "user bob is not in accounting"),
        ("--qos", {"qos": "solw"}, ALICE, "qos 'solw': did you mean 'slow'? user alice may use normal, slow with"),
        ("--qos", {"qos": "fast"}, ALICE, "qos fast needs account shared: user alice may use normal, slow with"),
        ("--qos", {"qos": "slow", "account": "shared"}, ALICE, "qos slow needs account vision: user alice may use"),
        (
            "--partition",
            {"partition": "mian"},
            None,
            "'mian': did you mean 'main'? the partitions are main, spare",
        ),
        ("--partition", {"partition": ["main", "x"]}, None, "partition 'x': the partitions are main, spare"),
    ],
)
def test_it_names_what_may_be_used(option: str, asked: dict[str, Any], rights: UserRights | None, says: str) -> None:
    refusal = SubmitRefused("Invalid thing specified", option=option)
    error = explained_refusal(refusal, BatchJob(command="x", **asked), rights, PARTITIONS)
    assert isinstance(error, SubmitRefused)
    assert error.option == option
    assert says in str(error)
    # The remedy comes first.
    assert str(error).endswith(" (sbatch: Invalid thing specified)")


@pytest.mark.parametrize(
    ("option", "asked", "rights"),
    [
        ("--account", {"account": "vision"}, ALICE),
        ("--account", {"account": "night", "partition": ["main", "spare"]}, ALICE),
        ("--account", {"account": "vision"}, None),
        ("--qos", {"qos": "slow"}, ALICE),
        ("--qos", {}, ALICE),
        ("--partition", {"partition": "main"}, None),
        ("--gres", {}, ALICE),
    ],
)
def test_what_is_not_known_is_not_explained(option: str, asked: dict[str, Any], rights: UserRights | None) -> None:
    refusal = SubmitRefused("Invalid thing specified", option=option)
    assert explained_refusal(refusal, BatchJob(command="x", **asked), rights, PARTITIONS) is refusal


def test_lines_of_the_script_count() -> None:
    job = BatchJob(script="#!/bin/sh\n#SBATCH --account=visoin\ntrue")
    error = explained_refusal(SubmitRefused("Invalid account", option="--account"), job, ALICE, ())
    assert "account 'visoin': did you mean 'vision'?" in str(error)
