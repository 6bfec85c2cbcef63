"""A shell script of chained ``sbatch`` calls as the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from airflow_provider_soperator.pipelines.chains.reading import read
from airflow_provider_soperator.pipelines.chains.stages import After, ScriptStage
from airflow_provider_soperator.pipelines.graph import KINDS, Link, PipelineError


def stages_of(
    script: str, here: Path, variables: Mapping[str, str], ignored: Collection[str]
) -> list[tuple[str, dict[str, Any], list[Link]]]:
    """Name, task parameters and links of each stage.

    A script of one line is a file below ``here``.
    """
    if "\n" not in script:
        file = here / script
        if not file.is_file():
            raise PipelineError(
                f"there is no script {script} in the DAG's folder {here}: name a file, or give its text"
            )
        here, script = file.parent, file.read_text()
    return [
        (stage.name, _options(stage, here), [link for after in stage.after for link in _links(stage, after)])
        for stage in read(script, variables=variables, ignored=ignored)
    ]


def _options(stage: ScriptStage, here: Path) -> dict[str, Any]:
    options = {name: _raw(value) for name, value in stage.fields.items() if value is not None}
    if others := options.pop("extra_args", None):
        options["sbatch_args"] = others
    if any(after.kind == "singleton" for after in stage.after):
        options["dependency"] = ",".join(filter(None, [options.get("dependency"), "singleton"]))
    if stage.args:
        options["args"] = _raw(list(stage.args))
    if stage.command is not None:
        return {**options, "command": _raw(stage.command)}
    if stage.stdin_script is not None:
        return {**options, "script": _raw(stage.stdin_script)}
    assert stage.script is not None, "a stage has one of the three"
    file = here / stage.script
    if file.is_file():
        return {**options, "script": _raw(file.read_text())}
    return {**options, "remote_script": _raw(stage.script)}


def _links(stage: ScriptStage, after: After) -> list[Link]:
    if after.kind == "singleton":
        return []
    if after.kind not in KINDS:
        raise PipelineError(
            f"line {stage.line}: {after.kind} is not for the stages of a pipeline; there are {', '.join(KINDS)}"
        )
    return [Link(upstream, after.kind, after.minutes) for upstream in after.stages]


def _raw(value: Any) -> Any:
    """Keep Jinja from reading a text as a template, such as ``${#files[@]}``."""
    if isinstance(value, str):
        return f"{{% raw %}}{value}{{% endraw %}}" if any(mark in value for mark in ("{{", "{%", "{#")) else value
    if isinstance(value, (list, tuple)):
        return [_raw(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _raw(one) for name, one in value.items()}
    return value
