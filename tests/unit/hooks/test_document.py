"""The connections in the documentation mean what it says, as URI and as JSON alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.sdk import Connection

from airflow_provider_soperator.hooks.forms import SOPERATOR
from airflow_provider_soperator.hooks.slurm import Settings, read
from airflow_provider_soperator.slurm.links import PLACEHOLDERS, link_problem

DOCS = Path(__file__).parents[3] / "docs"
DOCUMENT = (DOCS / "connection.md").read_text()
LINKS = (DOCS / "files-and-links.md").read_text()
EXAMPLES = re.findall(r"^### (.+?)\n.*?^```sh\n(.+?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)


def settings(said: str) -> Settings:
    """As Airflow reads an environment variable."""
    if said.startswith("{"):
        connection = Connection.from_json(said, conn_id="soperator_default")
    else:
        connection = Connection.from_uri(said, conn_id="soperator_default")
    return read(connection, connection.extra_dejson)


@pytest.mark.parametrize(
    ("title", "transport"),
    [
        ("SSH", "ssh"),
        ("An SSH connection that is there already", "ssh"),
        ("Kubernetes", "kubernetes"),
        ("SSH, with Kubernetes beside it", "ssh"),
        ("REST", "rest"),
        ("On a node of the cluster", "native"),
    ],
)
def test_an_example_means_the_same_in_both_forms(title: str, transport: str) -> None:
    uri, written = re.findall(r"AIRFLOW_CONN_SOPERATOR_DEFAULT='(.+?)'", dict(EXAMPLES)[title], re.DOTALL)
    assert settings(uri).transport == transport
    assert {**vars(settings(uri)), "written": None} == {**vars(settings(written)), "written": None}


def test_all_examples_are_tested() -> None:
    assert len(EXAMPLES) == 6


@pytest.mark.parametrize("name", [field.name for field in SOPERATOR.fields])
def test_each_field_is_in_the_table(name: str) -> None:
    table = DOCUMENT.partition("\n## Fields\n")[2].partition("\n## ")[0]
    assert f"`{name}`" in table


def test_each_placeholder_of_a_link_is_told_of_and_the_examples_have_no_others() -> None:
    assert set(re.findall(r"`\{(\w+)\}`", LINKS)) == PLACEHOLDERS.keys()
    examples = re.findall(r"`(https://.+?)`", LINKS)
    assert len(examples) == 3
    assert not any(map(link_problem, examples))
