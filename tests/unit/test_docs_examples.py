"""The DAGs in the documentation are ones that Airflow takes as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.unit.operators.dags import dags_made

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    f"{page.name}:{number}": code
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
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


def test_each_operator_has_a_page_with_one() -> None:
    pages = {name.partition(":")[0] for name in EXAMPLES}
    runs = {"sbatch.md", "task-sbatch.md", "pipelines.md", "sensors.md", "failures.md", "events.md"}
    assert runs | {"capacity.md", "cluster.md", "health.md", "nodes.md", "nebius.md"} <= pages
