"""A trial of an executor: tasks that do not exist go to a node as any others, and Airflow refuses to start them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from async_timeout import timeout

from airflow_provider_soperator.executors.task_jobs import SHARE

if TYPE_CHECKING:
    from airflow_provider_soperator.executors.job_keeper import News
    from airflow_provider_soperator.executors.slurm import SlurmExecutor


async def trial(executor: SlurmExecutor, asked: Mapping[str, Any], patience: float) -> list[News]:
    """The ends of two such tasks, of which the second has no token; or what was last told, if they have not ended.

    A server that is no Airflow's answers both alike.
    """
    from airflow.executors.workloads import ExecuteTask

    # Tasks in one job have one end.
    asked, queue = {**asked, SHARE: 1}, executor.conf.get("operators", "default_queue", fallback="default")
    tasks = []
    for index in (0, 1):
        ti = {
            **{"id": uuid4(), "dag_version_id": uuid4(), "dag_id": "doctor", "task_id": "trial", "run_id": "doctor"},
            **{"try_number": 1, "map_index": index, "pool_slots": 1, "queue": queue, "priority_weight": 1},
            **{"external_executor_id": str(uuid4()), "executor_config": asked},
        }
        said = {"token": "", "ti": ti, "dag_rel_path": "doctor.py", "bundle_info": {"name": "any"}, "log_path": None}
        tasks.append(executor.queued_task(ExecuteTask.model_validate(said)))
    tasks[1] = replace(tasks[1], workload={**tasks[1].workload, "token": "none"})
    keeper, ends, last = executor.keeper, dict[str, Any](), list[Any]()
    with suppress(asyncio.TimeoutError):
        async with timeout(patience):
            await keeper.submit(tasks)
            while len(ends) < len(tasks):
                await asyncio.sleep(0.2)
                news = [*executor.news()]
                last = news[-1:] or last
                ends |= {one.leg: one for one in news if one.is_end}
    await keeper.drop([task.leg for task in tasks])
    return [ends[task.leg] for task in tasks] if len(ends) == len(tasks) else last
