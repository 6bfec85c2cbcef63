"""Errors of Terraform, expected by their cause."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_soperator.terraform.failures import Cause, TerraformError


@contextmanager
def fails(cause: Cause, match: str | None = None) -> Iterator[pytest.ExceptionInfo[TerraformError]]:
    with pytest.raises(TerraformError, match=match) as failed:
        yield failed
    assert failed.value.cause is cause, failed.value
