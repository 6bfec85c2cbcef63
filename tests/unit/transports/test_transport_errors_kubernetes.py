"""A refusal that the sandbox's API has no way to bring about, told in words whichever client it came through."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import kubernetes_asyncio.client.exceptions
import pytest

from airflow_provider_soperator.transports.transport_errors import ConnectFailed, kubernetes_error
from sandbox.kube.errors import undeclared

WHY = 'pods is forbidden: User "u" cannot list resource "pods"'


def refused(status: int, why: str) -> Exception:
    error = kubernetes_asyncio.client.exceptions.ApiException(status=status)
    error.body = json.dumps({"kind": "Status", "message": why, "code": status})
    return error


def refused_list(why: str = WHY) -> Exception:
    return refused(403, why)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (refused_list(), WHY),
        (aiohttp.WSServerHandshakeError(Mock(), (), status=403, message="Invalid response status"), "HTTP 403"),
    ],
    ids=["list", "exec"],
)
def test_a_missing_right_names_what_was_refused_and_what_to_bind(error: Exception, words: str) -> None:
    said = kubernetes_error(error, "exec into pod login-0")
    assert isinstance(said, ConnectFailed)
    assert not said.retryable
    assert said.what == f"the Kubernetes account has no right to exec into pod login-0 ({words})"
    assert "pods/exec" in said.remedy


@pytest.mark.parametrize(
    "why",
    [
        'admission webhook "guard.example.com" denied the request: no',
        "deployments \"vllm\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
    ],
)
def test_what_the_owner_of_a_cluster_forbids_is_no_missing_right(why: str) -> None:
    said = kubernetes_error(refused_list(why), "scale Deployment vllm")
    assert said.what == f"could not scale Deployment vllm ({why})"
    assert said.remedy == "ask the owner of that webhook or policy"


@pytest.mark.parametrize(
    ("status", "why", "remedy", "passing"),
    [
        (
            403,
            'jobs.batch "check" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1, used: '
            "count/jobs.batch=4, limited: count/jobs.batch=4",
            "the cluster's owner limits this: see the message",
            False,
        ),
        (
            403,
            'slurmclusters.slurm.nebius.ai "acme" is forbidden: unable to create new content in namespace soperator '
            "because it is being terminated",
            "try again when the namespace is gone",
            True,
        ),
        (
            422,
            'NodeSet.slurm.nebius.ai "worker" is invalid: spec.replicas: Invalid value: "string": spec.replicas in '
            'body must be of type integer: "string"',
            "correct the object as the message says",
            False,
        ),
    ],
    ids=["quota", "terminated", "invalid"],
)
def test_what_the_message_explains_is_neither_a_missing_right_nor_a_wrong_connection(
    status: int, why: str, remedy: str, passing: bool
) -> None:
    said = kubernetes_error(refused(status, why), "create it")
    assert (said.what, said.remedy) == (f"could not create it ({why})", remedy)
    assert said.passing == passing


def test_a_field_that_the_cluster_does_not_know_is_no_overload() -> None:
    refusal = undeclared("NodeSet", "slurm.nebius.ai/v1alpha1", {"name": "worker"}, ["spec.slurmd.shared"])
    said = kubernetes_error(refused(refusal.code, refusal.message), "apply NodeSet worker")
    assert not said.passing
    assert said.what == f"could not apply NodeSet worker ({refusal.message})"
    assert said.remedy == "correct the field, or install the CRDs of this release"


def test_a_certificate_authority_that_cannot_be_read_is_no_silent_api(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    for text in ("", "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"):
        file.write_text(text)
        with pytest.raises(ssl.SSLError) as refused:
            ssl.create_default_context(cafile=str(file))
        said = kubernetes_error(refused.value, "list pods")
        assert said.what.startswith("the certificate authority of the Kubernetes connection cannot be read ([X509")
        assert "PEM" in said.remedy


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (ConnectionRefusedError("Connection refused"), True),
        (asyncio.TimeoutError(), True),
        (kubernetes_asyncio.client.exceptions.ApiException(status=503, reason="Unavailable"), True),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (kubernetes_asyncio.client.exceptions.ApiException(status=401, reason="Unauthorized"), False),
        (refused_list(), False),
    ],
    ids=str,
)
def test_an_api_that_is_away_is_told_from_a_connection_that_is_wrong(error: Exception, passing: bool) -> None:
    # As aiohttp has it.
    outer = aiohttp.ClientError()
    outer.__cause__ = error
    assert kubernetes_error(outer if isinstance(error, OSError) else error, "list pods").passing == passing
