"""What Terraform's words mean: Terraform's own are from its runs, those of clouds from what they document."""

from __future__ import annotations

import pytest

from airflow_provider_soperator.terraform import failures
from airflow_provider_soperator.terraform.failures import Cause, Diagnostic, Lock, explain, from_text

LOCKED = """Error message: operation error S3: PutObject, https response error StatusCode: 412, PreconditionFailed
Lock Info:
  ID:        1fffae9c-78b3-396f-9fbc-0a71dd913b86
  Path:      tfstate/slurm-k8s.tfstate
  Operation: OperationTypeApply
  Who:       root@worker-1
  Version:   1.11.4
  Created:   2026-11-22 01:55:35.496482762 +0000 UTC
  Info:

Terraform acquires a state lock to protect the state from being written
by multiple users at the same time."""
#: When that lock was made.
MADE = 1795312535.496482762


@pytest.mark.parametrize(
    ("summary", "detail", "cause"),
    [
        ("Error acquiring the state lock", LOCKED, failures.STATE_LOCKED),
        ("Error acquiring the state lock", "Error message: S3: PutObject, StatusCode: 403", failures.DENIED),
        ("Error acquiring the state lock", "Error message: resource temporarily unavailable", failures.STATE_LOCKED),
        ("Saved plan is stale", "The given plan file can no longer be applied", failures.PLAN_OUTDATED),
        ("Backend configuration changed", 'use "terraform init -reconfigure".', failures.BACKEND_CHANGED),
        ('Backend initialization required, please run "terraform init"', "", failures.BACKEND_CHANGED),
        ("Error asking for state migration action: input is disabled", "", failures.BACKEND_CHANGED),
        (
            "Can't ask approval for state migration when interactive input is disabled.",
            'Please remove the "-input=false" option and try again.',
            failures.BACKEND_CHANGED,
        ),
        ("Unsupported Terraform Core version", "does not support Terraform version 1.11.4", failures.TERRAFORM_TOO_OLD),
        ("Failed to query available provider packages", "Could not retrieve", failures.PROVIDER_MISSING),
        ("Failed to save state", "Error saving state: status code: 403", failures.STATE_NOT_SAVED),
        ("No configuration files", "Plan requires configuration", failures.NOT_A_RECIPE),
        ("No value for required variable", 'The root module input variable "region"', failures.INVALID_VARIABLE),
        ("Resource precondition failed", "Unsupported platform 'x' in region 'y'", failures.INVALID_VARIABLE),
        ("Unsupported argument", 'An argument named "x" is not expected here.', failures.RECIPE_INVALID),
        ("error", "rpc error: code = Unauthenticated desc = token is expired", failures.UNAUTHENTICATED),
        ("error", "api error ExpiredToken: The provided token has expired", failures.UNAUTHENTICATED),
        ("error", "the server answered with status code 401", failures.UNAUTHENTICATED),
        ("error", "rpc error: code = PermissionDenied desc = no", failures.DENIED),
        ("error", "https response error StatusCode: 403, RequestID: x", failures.DENIED),
        ("error", "rpc error: code = ResourceExhausted desc = NotEnoughResources", failures.NOT_ENOUGH_RESOURCES),
        ("error", "rpc error: code = AlreadyExists desc = cluster acme", failures.ALREADY_THERE),
        ("error", "api error BucketAlreadyOwnedByYou: it is yours", failures.ALREADY_THERE),
        ("installation failed", "cannot re-use a name that is still in use", failures.ALREADY_THERE),
        ("error", "disk 401 is broken, see line 403", failures.TERRAFORM_FAILED),
    ],
)
def test_what_an_error_means(summary: str, detail: str, cause: Cause) -> None:
    said = Diagnostic("error", summary, detail)
    error = explain([Diagnostic("warning", "quota: nothing to see"), said], "apply")
    assert error.cause is cause
    assert said.words in str(error)
    assert [one.severity for one in error.diagnostics] == ["warning", "error"]


def test_quotas_are_named() -> None:
    said = (
        "rpc error: code = ResourceExhausted desc = QuotaFailure: quota vpc.ipv4-address.public.count: limit 3; "
        "quota compute.instance.gpu.h100: limit 16 (service compute.api.nebius.cloud)"
    )
    error = explain([Diagnostic("error", "error", said, address="nebius_mk8s_v1_node_group.worker")], "apply")
    assert error.cause is failures.CLOUD_QUOTA_EXCEEDED
    assert str(error).startswith("the quota vpc.ipv4-address.public.count, compute.instance.gpu.h100 is exceeded")
    assert "nebius_mk8s_v1_node_group.worker" in str(error)


def test_of_many_errors_some_are_told() -> None:
    many = [Diagnostic("error", f"error {number}") for number in range(9)]
    assert str(explain(many, "plan")) == "terraform plan: error 0; error 1; error 2; and 6 more errors"
    assert str(explain([], "plan")) == "terraform plan: it failed without a message"
    long = explain([Diagnostic("error", "long", "word " * 1000)], "plan")
    assert len(str(long)) < 1000


def test_values_that_are_taken_no_notice_of() -> None:
    assert failures.UNKNOWN_VARIABLE.is_in("Value for undeclared variable")
    assert not failures.UNKNOWN_VARIABLE.is_in("Deprecated")
    assert not Cause().is_in("anything")


def test_errors_that_are_printed_for_people() -> None:
    said = (
        "Downloading git::file:///srv/lib?ref=v9 for recipe...\n"
        "\x1b[31m╷\x1b[0m\n│ Error: Failed to download module\n│ \n"
        '│   on main.tf.json line 1, in module:\n│    1: {"module":{}}\n│ \n'
        "│ Could not download module: error: pathspec\n│ 'v9' did not match\n╵\n"
        "╷\n│ Warning: Old\n│ \n│ Take care.\n╵\n"
    )
    wrong, old = from_text(said)
    assert (wrong.summary, wrong.where) == ("Failed to download module", "main.tf.json:1")
    assert wrong.detail == "Could not download module: error: pathspec\n'v9' did not match"
    assert list(old.lines()) == ["Warning: Old", "  Take care."]
    assert from_text("all is well") == ()


# Locks


def lock() -> Lock:
    found = Lock.read([Diagnostic("error", "Error acquiring the state lock", LOCKED)])
    assert found
    return found


def test_who_holds_a_lock() -> None:
    assert str(lock()) == (
        "root@worker-1 holds the lock of the state for apply since 2026-11-22 01:55:35.496482762 +0000 UTC "
        "(1fffae9c-78b3-396f-9fbc-0a71dd913b86)"
    )
    assert lock().created_at == pytest.approx(MADE, abs=1e-3)
    assert Lock.read([Diagnostic("error", "no", "lock")]) is None


def test_a_backend_that_tells_of_our_own_request_in_place_of_the_lock() -> None:
    said = LOCKED.replace("operation error S3", "HTTP remote state already locked: ID=4711\noperation error")
    found = Lock.read([Diagnostic("error", "Error acquiring the state lock", said)])
    assert found == Lock("4711")
    assert str(found) == "another process holds the lock of the state for an operation (4711)"


@pytest.mark.parametrize(
    ("who", "began", "last_sign", "is_ours"),
    [
        ("root@worker-1", MADE - 1, MADE + 5, True),
        ("root@worker-2", MADE - 1, MADE + 5, False),
        ("root@worker-1", MADE + 1, MADE + 5, False),
        ("root@worker-1", MADE - 9, MADE - 5, False),
        ("root@worker-1", MADE - 9, 0.0, False),
    ],
)
def test_whose_lock_it_is(who: str, began: float, last_sign: float, is_ours: bool) -> None:
    assert lock().belongs_to(who, began, last_sign) is is_ours
