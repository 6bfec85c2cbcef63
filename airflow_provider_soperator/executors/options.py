"""The executor's options, from the section ``[soperator]`` of Airflow's configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_provider_soperator.executors.settings import OPTIONS, SECTION
from airflow_provider_soperator.executors.task_jobs import ExecutorFolder, JobDefaults, QueuedTask


@dataclass(frozen=True)
class ExecutorOptions:
    """The options as they are set."""

    conn_id: str = "soperator_default"
    root: str = "airflow/executor"
    python: str = ""
    packages: tuple[str, ...] = ()
    defaults: JobDefaults = field(default_factory=JobDefaults)
    token_days: int = 7

    @classmethod
    def read(cls, conf: Any) -> ExecutorOptions:
        """Read the options, and refuse what no job could ask for."""
        said = {name: conf.get(SECTION, name, fallback=default) for name, (_, default, _) in OPTIONS.items()}
        job, queues = (conf.getjson(SECTION, name, fallback={}) for name in ("executor_job", "executor_queues"))
        if not isinstance(job, dict):
            raise ValueError(f"[{SECTION}] executor_job: write an object in JSON, not {job!r}")
        if not isinstance(queues, dict) or not all(isinstance(one, dict) for one in queues.values()):
            raise ValueError(
                f"[{SECTION}] executor_queues: write an object in JSON with one for each queue, not {queues!r}"
            )
        defaults = JobDefaults(job, queues, conf.get("operators", "default_queue", fallback="default"))
        tasks = [QueuedTask(queue, "dag", "run", "task", queue=queue) for queue in ("", *defaults.queues)]
        _, rejected = ExecutorFolder("/", "/bin/sh").plan(tasks, defaults, {})
        for queue, error in rejected.items():
            option = f"executor_queues, {queue}" if queue else "executor_job"
            raise ValueError(f"[{SECTION}] {option}: {error}")
        for name in ("executor_parallelism", "executor_token_days"):
            if (number := conf.getint(SECTION, name, fallback=1)) < 1:
                raise ValueError(f"[{SECTION}] {name}: {number} lets no task run: write 1 or more")
        return cls(
            said["executor_conn_id"],
            said["executor_root"],
            said["executor_python"],
            tuple(said["executor_packages"].split()),
            defaults,
            conf.getint(SECTION, "executor_token_days", fallback=cls.token_days),
        )
