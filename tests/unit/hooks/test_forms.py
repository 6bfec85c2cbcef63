"""Airflow's form for a Soperator connection: understood by Airflow in both ways, and its secrets hidden."""

from __future__ import annotations

import json

import pytest
from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.models.connection import Connection
from airflow.providers_manager import ProvidersManager
from airflow.sdk.log import redact

from airflow_provider_soperator.hooks.forms import FILE_WAYS, SOPERATOR, TRANSPORTS
from airflow_provider_soperator.hooks.slurm import SlurmHook

SECRETS = [field.name for field in SOPERATOR.fields if field.is_secret]


def test_the_page_gets_all_fields() -> None:
    [shown] = [kind for kind in HookMetaService.hook_meta_data() if kind.connection_type == "soperator"]
    assert shown.hook_name == "Soperator (Slurm)"
    assert shown.extra_fields is not None
    assert list(shown.extra_fields) == [field.name for field in SOPERATOR.fields]
    for field in SOPERATOR.fields:
        described = shown.extra_fields[field.name]
        assert described["schema"]["title"] == field.label
        assert described["description"] == field.help
        assert described["schema"].get("format") == ("password" if field.is_secret else None)
    assert shown.extra_fields["transport"]["schema"]["enum"] == [None, *TRANSPORTS]
    assert shown.extra_fields["files_via"]["schema"]["enum"] == [None, *FILE_WAYS]


def test_each_choice_has_words_of_its_own() -> None:
    fields = ProvidersManager().providers["airflow-provider-soperator"].data["connection-types"][0]["conn-fields"]
    for name in ("transport", "files_via"):
        schema = fields[name]["schema"]
        # What is chosen is what the extra says, so it has to be seen.
        assert all(schema["values_display"][value].startswith(f"{value}:") for value in schema["enum"] if value)
        assert schema["values_display"]["null"]


def _described() -> list[dict[str, object]]:
    [shown] = [kind for kind in HookMetaService.hook_meta_data() if kind.connection_type == "soperator"]
    assert shown.extra_fields is not None
    return [{"name": name, **field} for name, field in shown.extra_fields.items()]


def test_the_hook_that_is_named_is_there() -> None:
    hook = Connection(conn_id="mine", conn_type="soperator").get_hook()
    assert isinstance(hook, SlurmHook)
    assert hook.slurm_conn_id == "mine"


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_masked_by_its_name(name: str) -> None:
    assert redact({name: "hidden-value"}) == {name: "***"}


def test_the_api_shows_no_secret() -> None:
    extra = {field.name: f"what {field.name} says" for field in SOPERATOR.fields}
    connection = Connection(conn_id="mine", conn_type="soperator", password="a-password", extra=json.dumps(extra))
    shown = ConnectionResponse.model_validate(connection, from_attributes=True)
    assert shown.password == "***"
    assert json.loads(shown.extra or "") == {**extra, **dict.fromkeys(SECRETS, "***")}


def test_a_secret_that_was_read_is_masked_wherever_it_turns_up(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "b64-of-a-key-that-nobody-may-see"
    said = {"conn_type": "soperator", "host": "http://127.0.0.1:9", "extra": {"jwt_secret": secret}}
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps(said))
    assert redact(f"a log line with {secret}") != "a log line with ***"
    SlurmHook("mine").test_connection()
    assert redact(f"a log line with {secret}") == "a log line with ***"
