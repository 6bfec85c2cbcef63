"""What is wrong with a script of chained sbatch calls."""

from __future__ import annotations

from airflow_provider_soperator.pipelines.chains.standins import shown


class ShellChainError(ValueError):
    """What is not understood in a script, where, and what to do about it.

    >>> str(ShellChainError(3, "'mkdir' is not understood: take it into a job"))
    "line 3: 'mkdir' is not understood: take it into a job"
    """

    def __init__(self, line: int, problem: str) -> None:
        self.line = line
        self.problem = shown(problem)
        super().__init__(f"line {line}: {self.problem}")
