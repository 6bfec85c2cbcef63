"""What jobs wait for as the queue shows it; the texts are slurmctld's, of 24.11 and 26.05 alike."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.slurm.dependencies import Unmet
from airflow_provider_soperator.slurm.job_ids import JobId


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        ("", ""),
        ("afterok:44(unfulfilled)", "afterok:44"),
        ("after:44+5(unfulfilled)", "after:44+5"),
        ("afterany:44(unfulfilled),afterany:45_*(unfulfilled)", "afterany:44,afterany:45"),
        ("aftercorr:45_*(failed)", "aftercorr:45"),
        ("afterok:45_2(unfulfilled)", "afterok:45_2"),
        ("afterok:44(failed)?afternotok:45_*(unfulfilled)", "afterok:44?afternotok:45"),
        ("afterok:46(unfulfilled),singleton(unfulfilled)", "afterok:46,singleton"),
    ],
)
def test_is_read_as_slurm_takes_it(shown: str, meant: str) -> None:
    assert str(Unmet.parse(shown)) == meant


def test_what_is_no_dependency_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="not a dependency in Slurm's notation"):
        Unmet.parse("afterok:44 (odd)")


@pytest.mark.parametrize(
    ("shown", "relinked"),
    [
        ("afterok:7(failed),after:9+5(unfulfilled)", "afterok:12,after:9+5"),
        ("after:7+5(unfulfilled)", "after:12+5"),
        ("afterok:7_3(failed),aftercorr:7_*(failed)", "afterok:12_3,aftercorr:12"),
        ("afterok:77(failed),singleton(unfulfilled)", "afterok:77,singleton"),
        ("afterok:7(failed)?afterok:9(unfulfilled)", "afterok:12?afterok:9"),
    ],
)
def test_one_job_takes_the_place_of_another(shown: str, relinked: str) -> None:
    assert str(Unmet.parse(shown).relinked(JobId(7), JobId(12))) == relinked


@pytest.mark.parametrize(
    ("shown", "is_vain", "possible"),
    [
        ("afterok:7(failed)", True, ""),
        ("afterok:7(failed),afterany:9(unfulfilled)", True, "afterany:9"),
        ("afterok:7(failed)?afterok:9(unfulfilled)", False, "afterok:9"),
        ("afterok:7(failed)?afterok:9(failed)", True, ""),
        ("afterok:7(unfulfilled)", False, "afterok:7"),
        ("", False, ""),
    ],
)
def test_what_can_never_come_can_be_left_out(shown: str, is_vain: bool, possible: str) -> None:
    unmet = Unmet.parse(shown)
    assert unmet.is_vain is is_vain
    assert str(unmet.possible()) == possible
