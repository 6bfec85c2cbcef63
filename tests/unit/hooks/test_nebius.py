"""A Nebius connection: what may be in it, its form, and the words for what the API refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.api_fastapi.core_api.datamodels.connections import ConnectionResponse
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
from airflow.models.connection import Connection
from grpc import StatusCode
from nebius.aio.service_error import RequestError, RequestStatusExtended
from nebius.api.nebius.common.v1 import (
    BadRequest,
    NotEnoughResources,
    OperationConflict,
    PermissionDenied,
    QuotaFailure,
    ServiceError,
)
from nebius.base.error import SDKError

from airflow_provider_soperator.errors import ConnectionMistake
from airflow_provider_soperator.hooks.forms import NEBIUS
from airflow_provider_soperator.hooks.nebius import NebiusHook, NebiusSettings, read
from airflow_provider_soperator.nebius.api import (
    NebiusBusy,
    NebiusConflict,
    NebiusDenied,
    NebiusError,
    NebiusMissing,
    NebiusQuota,
    NebiusShortage,
    NebiusUnauthenticated,
    NebiusUnreachable,
    explain,
)

IDS = {"account_id": "serviceaccount-e00a", "public_key_id": "publickey-e00a"}
GROUP = "node group mk8snodegroup-e00a"


def settings(extra: dict[str, Any] | None = None, **fields: Any) -> NebiusSettings:
    connection = Connection(conn_id="mine", conn_type="nebius", extra=json.dumps(extra or {}), **fields)
    return read(connection, connection.extra_dejson)


# Settings


def test_leases_are_kept_where_the_connection_says() -> None:
    assert (settings().lease_conn_id, settings().lease_namespace) == ("", "default")
    found = settings({"lease_conn_id": "kubernetes_training", "lease_namespace": "capacity"})
    assert (found.lease_conn_id, found.lease_namespace) == ("kubernetes_training", "capacity")


def test_without_a_host_it_is_nebius_itself() -> None:
    assert settings(password="t") == NebiusSettings(conn_id="mine", token="t")
    assert settings().where == "api.nebius.cloud"


def test_a_host_is_one_server_for_all_and_a_domain_has_a_name_for_each_service() -> None:
    assert settings(host="127.0.0.1", port=26005).endpoint == "127.0.0.1:26005"
    assert settings(host="gateway.example.com").endpoint == "gateway.example.com:443"
    domain = settings(host="api.eu.nebius.cloud")
    assert (domain.endpoint, domain.domain) == ("", "api.eu.nebius.cloud:443")


def test_a_flag_in_a_uri_is_a_text() -> None:
    assert settings({"insecure": "true"}).insecure
    assert not settings({"insecure": "false"}).insecure


def test_secrets_are_not_shown() -> None:
    shown = repr([settings(password="hidden"), settings({"private_key": "hidden", **IDS})])
    assert "hidden" not in shown


@pytest.mark.parametrize(
    ("extra", "fields", "words"),
    [
        ({}, {"host": "https://api.nebius.cloud"}, "is a name without http://"),
        ({"private_key": "k", **IDS}, {"password": "t"}, "the password and private_key are both set"),
        ({"credentials_file": "f"}, {"password": "t"}, "the password and credentials_file are both set"),
        ({"private_key": "pem", "account_id": "a"}, {}, "set public_key_id beside it"),
        ({"private_key": "pem"}, {}, "set account_id and public_key_id beside it"),
        (IDS, {}, "set private_key or credentials_file"),
        ({"privat_key": "k"}, {}, "did you mean 'private_key'?"),
    ],
)
def test_a_mistake_is_named(extra: dict[str, Any], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConnectionMistake, match=words.replace("?", r"\?")):
        settings(extra, **fields)


# The form


def test_the_page_gets_all_fields() -> None:
    [shown] = [kind for kind in HookMetaService.hook_meta_data() if kind.connection_type == "nebius"]
    assert shown.hook_name == "Nebius"
    assert shown.extra_fields is not None
    assert list(shown.extra_fields) == [field.name for field in NEBIUS.fields]
    assert shown.standard_fields is not None
    assert shown.standard_fields.password is not None
    assert shown.standard_fields.password.title == "Access token"


def test_the_hook_that_is_named_is_there() -> None:
    hook = Connection(conn_id="mine", conn_type="nebius").get_hook()
    assert isinstance(hook, NebiusHook)
    assert hook.nebius_conn_id == "mine"


def test_the_api_shows_what_is_no_secret_and_nothing_else() -> None:
    extra = {field.name: f"what {field.name} says" for field in NEBIUS.fields}
    connection = Connection(conn_id="mine", conn_type="nebius", password="a-password", extra=json.dumps(extra))
    shown = ConnectionResponse.model_validate(connection, from_attributes=True)
    assert shown.password == "***"
    assert json.loads(shown.extra or "") == {**extra, "private_key": "***"}


def test_a_connection_of_another_type_is_refused() -> None:
    connection = Connection(conn_id="mine", conn_type="soperator", host="login", password="of the login node")
    with pytest.raises(ConnectionMistake, match="mine is of type soperator: name a nebius one"):
        read(connection, {})


# What the API refuses


def refusal(code: StatusCode, *errors: ServiceError, message: str = "no") -> RequestError:
    status = RequestStatusExtended(
        code=code, message=message, details=[], service_errors=list(errors), request_id="request-1", trace_id=""
    )
    return RequestError(status)


def detail(**details: Any) -> ServiceError:
    return ServiceError(service="mk8s", code="Whatever", **details)


QUOTA = QuotaFailure(
    violations=[
        QuotaFailure.Violation(quota="vpc.ipv4-address.public.count", limit="3", requested="4"),
        QuotaFailure.Violation(quota="compute.disk.count", limit="8", requested="9", message="too many disks"),
    ]
)
SHORT = NotEnoughResources(violations=[NotEnoughResources.Violation(resource_type="gpu", requested="8")])
BAD = BadRequest(violations=[BadRequest.Violation(field="spec.size", message="is required")])


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (refusal(StatusCode.UNAUTHENTICATED), NebiusUnauthenticated, ["refused the credentials", "new token"]),
        (
            refusal(StatusCode.PERMISSION_DENIED, detail(permission_denied=PermissionDenied(resource_id="x"))),
            NebiusDenied,
            [f"the account may not resize {GROUP} (no; request request-1)", "editor"],
        ),
        (refusal(StatusCode.NOT_FOUND), NebiusMissing, [f"there is no {GROUP}"]),
        (
            refusal(StatusCode.RESOURCE_EXHAUSTED, detail(quota_failure=QUOTA)),
            NebiusQuota,
            [
                "quota vpc.ipv4-address.public.count: 4 requested, the limit is 3",
                "quota compute.disk.count: 9 requested, the limit is 8. too many disks",
            ],
        ),
        (
            refusal(StatusCode.RESOURCE_EXHAUSTED, detail(not_enough_resources=SHORT)),
            NebiusShortage,
            ["not enough gpu (8 requested)"],
        ),
        (refusal(StatusCode.RESOURCE_EXHAUSTED), NebiusBusy, ["quotas"]),
        (
            refusal(
                StatusCode.ABORTED,
                detail(operation_conflict=OperationConflict(resource_id="x", conflicting_operation_id="op-1")),
            ),
            NebiusConflict,
            ["operation op-1 is running"],
        ),
        (refusal(StatusCode.INVALID_ARGUMENT, detail(bad_request=BAD)), NebiusError, ["spec.size is required"]),
        (refusal(StatusCode.UNAVAILABLE), NebiusUnreachable, ["check host and port"]),
        (refusal(StatusCode.DEADLINE_EXCEEDED), NebiusUnreachable, ["check host and port"]),
        (refusal(StatusCode.INTERNAL), NebiusUnreachable, ["retry"]),
        (TimeoutError("The request timed out."), NebiusUnreachable, [f"could not resize {GROUP}: no answer in time"]),
        (SDKError("empty token file provided"), NebiusError, ["empty token file provided"]),
        (FileNotFoundError(2, "No such file", "/token"), NebiusUnauthenticated, ["/token", "check the credentials"]),
    ],
)
def test_it_is_told_in_words(error: Exception, kind: type[NebiusError], words: list[str]) -> None:
    ours = explain(error, "resize", GROUP)
    assert type(ours) is kind
    assert ours.remedy
    for word in words:
        assert word in str(ours)


def test_what_may_be_tried_again() -> None:
    again = {NebiusUnreachable, NebiusBusy, NebiusConflict, NebiusShortage}
    never = {NebiusUnauthenticated, NebiusDenied, NebiusMissing, NebiusQuota, NebiusError}
    assert all(kind.retryable for kind in again)
    assert not any(kind.retryable for kind in never)
    assert [kind for kind in again | never if kind.unsettled] == [NebiusUnreachable]
