"""A batch job, and what can be done with it: check it, write it down, have it submitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airflow_provider_soperator.slurm import checks, directives, payload, rendering
from airflow_provider_soperator.slurm import submission as submissions
from airflow_provider_soperator.slurm.description import JobDescription, ScriptFile
from airflow_provider_soperator.slurm.submission import Submission

__all__ = ["BatchJob", "ScriptFile"]


class BatchJob(JobDescription):
    """A job for sbatch or slurmrestd: one body, and what it asks for, under sbatch's own names.

    >>> job = BatchJob(command=["python", "train.py", "--tag", "it's"], nodes=2, gpus_per_node=8, gpu_type="h100")
    >>> job.argv()
    ['--nodes=2', '--gpus-per-node=h100:8']
    >>> print(job.to_script(), end="")
    #!/bin/sh
    #SBATCH --nodes=2
    #SBATCH --gpus-per-node=h100:8
    python train.py --tag 'it'"'"'s'
    >>> job.replace(mem="8G", mem_per_cpu="1G").problems()
    ['mem and mem_per_cpu: Slurm takes one of them']
    """

    @classmethod
    def from_script(cls, script: str | ScriptFile, **fields: Any) -> BatchJob:
        """A job with the fields that the #SBATCH lines of a script ask for, so that they can be seen and changed.

        >>> BatchJob.from_script("#!/bin/sh\\n#SBATCH -p main -t 1:00:00\\ntrue\\n", nodes=1).partition
        'main'
        """
        text = script if isinstance(script, str) else script.text
        try:
            first, *others = directives.read(text)
        except directives.DirectiveError as wrong:
            raise checks.InvalidJob([f"the script's {wrong}"]) from None
        said: dict[str, Any] = {**first.fields, "extra_args": tuple(first.extra_args)}
        if others:
            said["het"] = tuple(cls(**part.fields, extra_args=tuple(part.extra_args)) for part in others)
            # A job that says its components itself can keep no second list of them in its script.
            text = directives.without_components(text)
        if isinstance(script, str):
            return cls(script=text, **(said | fields))
        return cls(script_file=ScriptFile(script.name, text), **(said | fields))

    def problems(self) -> list[str]:
        """What is wrong with the job, in words, all at once; nothing if it can be submitted."""
        return checks.problems(self)

    def check(self) -> None:
        """Raise InvalidJob if the job has problems."""
        if found := self.problems():
            raise checks.InvalidJob(found)

    def argv(self) -> list[str]:
        """The options as words of sbatch's command line. They win over lines in the script."""
        self.check()
        return rendering.argv(self)

    def to_script(self) -> str:
        """A script that says it all: for people to read and keep. To submit, use `submission` or `to_payload`."""
        self.check()
        try:
            return rendering.script(self)
        except ValueError as impossible:
            raise checks.InvalidJob([str(impossible)]) from None

    def submission(self) -> Submission:
        """What to run on the cluster to submit the job, over any road that carries a command and its stdin."""
        self.check()
        return submissions.build(self)

    def to_payload(self, version: str, *, environment: Iterable[str] = payload.ENVIRONMENT) -> dict[str, Any]:
        """The body of slurmrestd's POST /slurm/{version}/job/submit; `environment` stands in for a login's."""
        self.check()
        return payload.build(self, version, environment)
