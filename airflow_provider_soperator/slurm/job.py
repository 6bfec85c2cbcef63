"""Batch jobs: their checks and submissions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any

from airflow_provider_soperator.errors import name_remedy
from airflow_provider_soperator.slurm import job_checks, job_description, options, sbatch_arguments
from airflow_provider_soperator.slurm.job_description import JobDescription, ScriptFile
from airflow_provider_soperator.slurm.sbatch_arguments import Submission


class BatchJob(JobDescription):
    """A job for sbatch or slurmrestd: one body, and sbatch's options under their own names.

    >>> job = BatchJob(command=["python", "train.py", "--tag", "it's"], nodes=2, gpus_per_node=8, gpu_type="h100")
    >>> job.argv()
    ['--nodes=2', '--gpus-per-node=h100:8']
    >>> job.replace(mem="8G", mem_per_cpu="1G").problems()
    ['mem and mem_per_cpu: Slurm takes only one of them']
    """

    def problems(self) -> list[str]:
        return job_checks.problems(self)

    def check(self) -> None:
        if found := self.problems():
            raise job_description.InvalidJob(found)

    def argv(self) -> list[str]:
        """The options as words of sbatch's command line, which override #SBATCH lines in the script."""
        self.check()
        return sbatch_arguments.argv(self)

    def submission(self) -> Submission:
        """The command, and its standard input, that submits the job on the cluster."""
        self.check()
        return sbatch_arguments.build_submission(self)

    def to_payload(self, version: str) -> dict[str, Any]:
        """The body of slurmrestd's POST /slurm/{version}/job/submit."""
        self.check()
        return sbatch_arguments.build_payload(self, version)


def fields_of(job: BatchJob) -> dict[str, Any]:
    """The fields that are set, as texts, numbers, booleans, lists and dicts.

    >>> from datetime import timedelta
    >>> fields_of(BatchJob(command=["echo", "a"], time_limit=timedelta(hours=2), array=range(3), exclusive=True))
    {'command': ['echo', 'a'], 'exclusive': True, 'time_limit': '0-02:00:00', 'array': '0-2'}
    """
    said = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    return {
        name: _plain_field(name, value)
        for name, value in said.items()
        if value is not None and value not in ((), {}, [])
    }


def _plain_field(name: str, value: Any) -> Any:
    if name == "het":
        return [fields_of(component) for component in value]
    if isinstance(value, ScriptFile):
        return dataclasses.asdict(value)
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return dict(value)
    if name in ("command", "args", "extra_args"):
        return list(value)
    if name == "array":
        return job_description.array_text(value)
    return options.by_field(name, value).kind.write(value)


def literal_problems(said: Mapping[str, Any], hidden: Collection[str]) -> list[str]:
    """The problems that some fields of a job have whatever its other, ``hidden`` ones will be.

    >>> literal_problems({"mem": "much", "array_limit": 2}, ["command", "array"])
    ["mem: 'much' is not an amount of memory: write a whole number and K, M, G or T, such as 16G"]
    """
    try:
        job = job_of({name: value for name, value in said.items() if value is not None})
    except job_description.InvalidJob as error:
        return error.problems
    return [problem for problem in job.problems() if not {*re.findall(r"\w+", problem)} & {*hidden}]


def job_of(said: Mapping[str, Any]) -> BatchJob:
    """The job with the fields from ``fields_of``; parts of a heterogeneous one may be jobs already."""
    fields = dict(said)
    if "script_file" in fields:
        fields["script_file"] = ScriptFile(**fields["script_file"])
    if "het" in fields:
        fields["het"] = tuple(one if isinstance(one, BatchJob) else job_of(one) for one in fields["het"])
    known = [field.name for field in dataclasses.fields(BatchJob)]
    if unknown := [name for name in fields if name not in known]:
        raise job_description.InvalidJob([f"{name}: no such field; {name_remedy(name, known, '')}" for name in unknown])
    return BatchJob(**fields)
