"""Values as parameters name them, and as Airflow keeps them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import supervisor, task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetVariable, MaskSecret, VariableResult
from airflow.sdk.execution_time.secrets.execution_api import ExecutionAPISecretsBackend

from airflow_provider_soperator.errors import AirflowAway
from airflow_provider_soperator.values import kept, moment_of, number_or_share


def test_what_is_one() -> None:
    noon = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
    assert moment_of("since", noon) == moment_of("since", "2026-11-22T12:00:00Z") == noon
    # Templates make these of nothing.
    assert [moment_of("since", said) for said in (None, "", "None")] == [None, None, None]


def test_what_is_none() -> None:
    with pytest.raises(ValueError, match="is not a date and time with a time zone"):
        moment_of("since", datetime(2026, 11, 22))
    with pytest.raises(ValueError, match="is not a date and time with a time zone"):
        moment_of("since", "2026-11-22T12:00:00")
    with pytest.raises(ValueError, match="since='soon' is not a date and time"):
        moment_of("since", "soon")


@pytest.mark.parametrize("said", [0, -1, "0%", "110%", "some", "", True])
def test_how_many_at_once_is_checked(said: int | str) -> None:
    with pytest.raises(ValueError, match="must be a number of nodes >= 1 or a percentage"):
        number_or_share("max_parallel", said, 4)


class Api:
    """Airflow's API to a task, which answers so, or is away where it has no answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: str | ErrorType) -> None:
        self._answers = list(answers)
        monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", self, raising=False)
        monkeypatch.setattr(supervisor, "ensure_secrets_backend_loaded", lambda: [ExecutionAPISecretsBackend()])

    def send(self, question: GetVariable | MaskSecret) -> VariableResult | ErrorResponse | None:
        if isinstance(question, MaskSecret):
            return None
        answer = self._answers.pop(0)
        if isinstance(answer, str):
            return VariableResult(key=question.key, value=answer)
        error = ErrorResponse(error=answer)
        if answer is ErrorType.GENERIC_ERROR:
            raise AirflowRuntimeError(error)
        return error


def test_a_variable_that_is_not_there_is_told_from_one_of_which_the_api_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Api(monkeypatch, "[1]")
    assert kept("overrides", []) == [1]
    Api(monkeypatch, *[ErrorType.VARIABLE_NOT_FOUND] * 2)
    assert kept("overrides", []) == []
    # It may be back by then.
    Api(monkeypatch, ErrorType.API_SERVER_ERROR, "[2]")
    assert kept("overrides", []) == [2]
    for error in (ErrorType.API_SERVER_ERROR, ErrorType.GENERIC_ERROR):
        Api(monkeypatch, error, error)
        with pytest.raises(AirflowAway, match="it is not known what the Airflow Variable overrides keeps: ") as away:
            kept("overrides", [])
        assert away.value.passing
