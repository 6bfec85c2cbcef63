"""The table of options and the job's fields are two sides of one thing."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_soperator.slurm import directives
from airflow_provider_soperator.slurm import job_description as options
from airflow_provider_soperator.slurm.job import BatchJob

#: Fields of a job that are no option of their own.
NOT_OPTIONS = {"script", "command", "remote_script", "args"} | {
    *("gpu_type", "array_limit", "env", "extra_args", "het", "remote_lines", "by_default"),
}


def test_each_field_is_an_option_and_each_option_a_field() -> None:
    assert {field.name for field in dataclasses.fields(BatchJob)} - NOT_OPTIONS == set(options.FIELDS)


def test_names_are_given_once() -> None:
    longs = [option.long for option in options.OPTIONS]
    shorts = [option.short for option in options.OPTIONS if option.short]
    assert len(longs) == len(set(longs))
    assert len(shorts) == len(set(shorts))
    assert not set(longs) & set(directives.UNTYPED)
    assert set(options.REFUSED) <= set(directives.UNTYPED)


@pytest.mark.parametrize(
    ("written", "resolved"),
    [
        ("nodes", ("nodes", "required")),
        ("nod", None),
        ("part", ("partition", "required")),
        ("excl", None),  # exclude, exclusive
        ("exclusive", ("exclusive", "optional")),
        ("hold", ("hold", "no")),
        ("tasks-per-node", ("ntasks-per-node", "required")),
        ("wait", ("wait", "no")),
        ("of-a-plugin", None),
        ("", None),
    ],
)
def test_long_options(written: str, resolved: tuple[str, str] | None) -> None:
    assert directives.resolve_long(written) == resolved


def test_short_options() -> None:
    assert directives.resolve_short("c") == ("cpus-per-task", "required")
    assert directives.resolve_short("W") == ("wait", "no")
    assert directives.resolve_short("y") is None
