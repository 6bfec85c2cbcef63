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
        defaults = JobDefaults(
            conf.getjson(SECTION, "executor_job", fallback={}),
            conf.getjson(SECTION, "executor_queues", fallback={}),
            conf.get("operators", "default_queue", fallback="default"),
        )
        tasks = [QueuedTask(queue, "dag", "run", "task", queue=queue) for queue in ("", *defaults.queues)]
        _, rejected = ExecutorFolder("/", "/bin/sh").plan(tasks, defaults, {})
        for queue, error in rejected.items():
            option = f"executor_queues, {queue}" if queue else "executor_job"
            raise ValueError(f"[{SECTION}] {option}: {error}")
        return cls(
            said["executor_conn_id"],
            said["executor_root"],
            said["executor_python"],
            tuple(said["executor_packages"].split()),
            defaults,
            int(said["executor_token_days"]),
        )
