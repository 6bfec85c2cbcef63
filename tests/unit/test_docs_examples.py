"""The DAGs in the documentation are ones that Airflow takes as they stand, and what it imports is there."""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name

import pytest

from airflow_provider_soperator.operators.pipeline import SbatchPipeline
from tests.unit.operators.dags import dags_made, segments

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = {
    f"{page.name}:{number}": code
    for page in PAGES
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
    if "@dag(" in code or "capacity_dag(" in code or "action_dags(" in code
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_makes_a_dag(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dags_made(monkeypatch)
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})
    assert made
    for dag in made:
        dag.validate()
        assert dag.tasks


@pytest.mark.parametrize("name", ["README.md:0", "pipelines.md:0"])
def test_its_pipeline_is_submitted_together(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = dags_made(monkeypatch)
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})
    groups = [group for dag in made for group in dag.task_group.get_task_group_dict().values()]
    assert [len(stages) for group in groups if isinstance(group, SbatchPipeline) for stages in segments(group)] == [3]


def test_each_operator_has_a_page_with_one() -> None:
    pages = {name.partition(":")[0] for name in EXAMPLES}
    runs = {"sbatch.md", "task-sbatch.md", "pipelines.md", "sensors.md", "failures.md", "events.md"}
    assert runs | {"capacity.md", "cluster.md", "health.md", "nodes.md", "nebius.md"} <= pages


def test_what_it_names_of_the_provider_is_there() -> None:
    names = {name for page in PAGES for name in re.findall(r"\bairflow_provider_soperator(?:\.\w+)+", page.read_text())}
    assert "airflow_provider_soperator.nebius.api" in names
    for name in names:
        resolve_name(name)
