"""Dependencies with the names of stages where Slurm has the ids of jobs: pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Any

from airflow_provider_soperator.pipelines.graph import KINDS, Link, PipelineError
from airflow_provider_soperator.slurm.dependencies import dependency_text

_ID = re.compile(r"\d+(?:_(?:\d+|\*))?")
#: What is between commas, or between colons, outside of templates.
_TERM, _PART = (re.compile(rf"(?:{{{{.*?}}}}|[^{separator}])+") for separator in ",:")


def read(stage: str, dependency: Any, stages: Collection[str]) -> tuple[str, list[Link]]:
    """What a stage waits for in others, after the rest of it, as Slurm is to be told.

    >>> own, links = read("c", "afterok:a:77,after:b+5,singleton", ["a", "b", "c"])
    >>> own, [(link.upstream, str(link)) for link in links]
    ('afterok:77,singleton', [('a', 'afterok'), ('b', 'after+5')])
    """
    own: list[str] = []
    links: list[Link] = []
    text = dependency_text(dependency or "")
    if "?" in text:
        if any(job in stages for job in re.split(r"[?:+]", text)):
            raise PipelineError(
                f"{stage} waits for any of several ({text}), which a pipeline cannot tell: join all of them by commas"
            )
        return text, []
    for term in map(str.strip, _TERM.findall(text)):
        kind, *jobs = _PART.findall(term)
        ids = [job for job in jobs if _is_no_name(job, stages)]
        if ids or not jobs:
            own.append(":".join([kind, *ids]))
        links += [_link(stage, kind.lower(), job, stages) for job in jobs if job not in ids]
    return ",".join(own), links


def _is_no_name(job: str, stages: Collection[str]) -> bool:
    """Whether it is an id, or may become one when a template is rendered."""
    return "{{" in job or (job not in stages and _ID.fullmatch(job.partition("+")[0]) is not None)


def _link(stage: str, kind: str, said: str, stages: Collection[str]) -> Link:
    name, _, minutes = (said, "", "") if said in stages else said.partition("+")
    if kind not in KINDS:
        raise PipelineError(f"{stage}: {kind} is no kind of dependency; there are {', '.join(KINDS)}")
    if name not in stages:
        close = difflib.get_close_matches(name, stages, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(stages)}"
        raise PipelineError(f"{stage} waits for {name}, which is no stage of the pipeline: {hint}")
    if minutes and kind != "after":
        raise PipelineError(f"{stage} waits for {said} by {kind}, but only after takes minutes")
    if minutes and not minutes.isdecimal():
        raise PipelineError(f"{stage} waits for {said}, but {minutes!r} are no minutes: write after:{name}+5")
    return Link(name, kind, int(minutes or 0))
