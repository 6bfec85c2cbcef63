"""DAGs with a pipeline, as Airflow's DAG processor takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_soperator.operators.pipeline import PipelineError, SbatchPipeline
from airflow_provider_soperator.operators.sbatch import SbatchOperator


def job(task_id: str, **options: Any) -> SbatchOperator:
    return SbatchOperator(task_id=task_id, **{"command": "true", **options})


def plain(task_id: str, **options: Any) -> EmptyOperator:
    return EmptyOperator(task_id=task_id, **options)


@contextmanager
def taken(**options: Any) -> Iterator[DAG]:
    """A DAG that must stand all that is done to one before it runs, there and back."""
    with DAG("d", schedule=None, **options) as dag:
        yield dag
    take(dag)


def take(dag: DAG) -> None:
    dag.resolve_template_files()
    dag.validate()
    dag.check_cycle()
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    for task in dag.tasks:
        found = stored.get_task(task.task_id)
        assert found.upstream_task_ids == task.upstream_task_ids
        assert found.trigger_rule == task.trigger_rule


@contextmanager
def refused(*said: str) -> Iterator[None]:
    """A DAG that is refused by one sentence with all of these in it."""
    with pytest.raises(PipelineError) as error, DAG("d", schedule=None) as dag:  # noqa: PT012 - both may refuse it
        yield
        dag.resolve_template_files()
    for part in said:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def upstream(pipeline: SbatchPipeline, task_id: str) -> set[str]:
    """What a task of the pipeline follows, without the pipeline's name."""
    task = pipeline.dag.get_task(f"{pipeline.group_id}.{task_id}")
    return {name.removeprefix(f"{pipeline.group_id}.") for name in task.upstream_task_ids}


def rule(pipeline: SbatchPipeline, task_id: str) -> str:
    return str(pipeline.dag.get_task(f"{pipeline.group_id}.{task_id}").trigger_rule.value)


def segments(pipeline: SbatchPipeline) -> list[list[str]]:
    """What is submitted together, without the pipeline's name."""
    prefix = f"{pipeline.group_id}."
    return [[name.removeprefix(prefix) for name in segment.stages] for segment in pipeline.graph.segments]


def links(pipeline: SbatchPipeline, task_id: str) -> dict[str, str]:
    """What a stage waits for in Slurm."""
    stage = pipeline.graph[f"{pipeline.group_id}.{task_id}"]
    return {link.upstream.removeprefix(f"{pipeline.group_id}."): str(link) for link in stage.links}


def dags_made(monkeypatch: pytest.MonkeyPatch) -> list[DAG]:
    """The DAGs that are made from now on, in their order."""
    made: list[DAG] = []
    leave = DAG.__exit__

    def note(dag: DAG, *error: Any) -> None:
        made.append(dag)
        leave(dag, *error)

    monkeypatch.setattr(DAG, "__exit__", note)
    return made
