"""What Airflow 3.1 has for the forms of connections."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService


@pytest.fixture
def wtforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of it as Airflow 3.1 puts in its place where it is not installed."""
    fields, validators = ModuleType("wtforms"), ModuleType("wtforms.validators")
    vars(fields).update(
        BooleanField=HookMetaService.MockBooleanField,
        PasswordField=HookMetaService.MockPasswordField,
        StringField=HookMetaService.MockStringField,
    )
    vars(validators).update(Optional=HookMetaService.MockOptional, any_of=HookMetaService.MockEnum)
    monkeypatch.setitem(sys.modules, "wtforms", fields)
    monkeypatch.setitem(sys.modules, "wtforms.validators", validators)
