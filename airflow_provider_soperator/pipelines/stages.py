"""Which tasks of a group are stages of a pipeline, and what each of them follows."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow.sdk import DAG, TriggerRule

from airflow_provider_soperator.pipelines.graph import EARLY, KINDS, Link, PipelineError, Stage
from airflow_provider_soperator.pipelines.tasks import Task, cluster_of, is_slurm_job, mapped_over, option, references

#: What an edge without a label means, by the rule that its task has been given.
_MEANT = {TriggerRule.ALL_SUCCESS: "afterok", TriggerRule.ALL_DONE: "afterany", TriggerRule.ALL_FAILED: "afternotok"}
_RULES = {frozenset({kind}): rule for rule, kind in _MEANT.items()} | {frozenset(): TriggerRule.ALL_SUCCESS}


class StageReader:
    """Reads the edges of the tasks of one group."""

    def __init__(self, dag: DAG, group_id: str) -> None:
        self._dag, self._group_id = dag, group_id
        #: For each job all that it follows, jobs and other tasks.
        self.followed: dict[str, tuple[Link, ...]] = {}

    def stages(self, tasks: Mapping[str, Task]) -> list[Stage]:
        """The tasks whose jobs can be submitted ahead, with what they follow."""
        clusters = {name: cluster_of(task) for name, task in tasks.items() if is_slurm_job(task)}
        for name in clusters:
            self._follow(tasks[name])
        stages: dict[str, Stage] = {}
        alone: set[str] = set()
        # One that Airflow alone can start is, for those after it, a task like any other.
        while stages.keys() | alone != clusters.keys():
            stages = {}
            for name, links in self.followed.items():
                if name in alone:
                    continue
                inside = [link for link in links if self._is_slurms(link, tasks[name], clusters, alone)]
                gates = [link for link in links if link not in inside]
                for link in gates:
                    if link.kind in EARLY:
                        raise self._not_early(link, name, clusters, alone)
                if any(link.kind != "afterok" for link in gates):
                    alone.add(name)
                    break
                stages[name] = Stage(name, clusters[name], tuple(inside), frozenset(link.upstream for link in gates))
        return list(stages.values())

    def _follow(self, task: Task) -> None:
        """Note what a stage follows, and give its task the trigger rule that says the same."""
        if task.is_setup or task.is_teardown:
            raise PipelineError(
                f"{task.task_id} is a setup or teardown task, which a job that is submitted ahead cannot be: "
                f"leave that out, or put it outside the pipeline {self._group_id}"
            )
        if option(task, "clusters") or "clusters" in mapped_over(task):
            raise PipelineError(
                f"{task.task_id} is to run on another cluster by clusters=, where the ids of other jobs mean nothing: "
                f"give it a connection of that cluster (slurm_conn_id)"
            )
        if "slurm_conn_id" in mapped_over(task):
            raise PipelineError(
                f"{task.task_id} is mapped over slurm_conn_id, but jobs that are submitted together are on one "
                f"cluster: make a stage for each"
            )
        links = tuple(self._link(upstream, task) for upstream in sorted(task.upstream_task_ids))
        self.followed[task.task_id] = links
        # What no rule can say, the task finds out for itself.
        task.trigger_rule = _RULES.get(frozenset(link.kind for link in links), TriggerRule.ALL_DONE)

    def _not_early(self, link: Link, name: str, clusters: Mapping[str, str], alone: Collection[str]) -> PipelineError:
        why = f"{name} needs its result"
        if link.upstream not in clusters:
            why = f"it is no job of the pipeline {self._group_id}"
        elif clusters[link.upstream] != clusters[name]:
            why = f"it is on another cluster ({clusters[link.upstream]})"
        elif link.upstream in alone:
            why = "its job is not submitted ahead"
        return PipelineError(f"{name} cannot follow {link.upstream} by {link}, as {why}: say afterok()")

    def _is_slurms(self, link: Link, task: Task, clusters: Mapping[str, str], alone: Collection[str]) -> bool:
        """Whether it is Slurm that sees to a link, and not Airflow."""
        # To Slurm the first try's job is all there is, and what is to follow a failure would not wait for another.
        may_come_right = link.kind in ("afterany", "afternotok") and bool(self._dag.get_task(link.upstream).retries)
        return (
            clusters.get(link.upstream) == clusters[task.task_id]
            and link.upstream not in alone
            and link.upstream not in {upstream.task_id for upstream, _ in references(task)}
            and not may_come_right
        )

    def _link(self, upstream: str, task: Task) -> Link:
        rule = TriggerRule(task.trigger_rule)
        if rule not in _MEANT:
            raise PipelineError(
                f"{task.task_id} has the trigger rule {rule.value}, which Slurm has no word for: say what it waits for "
                f"on its edges, as in a >> afterany() >> b; there are {', '.join(KINDS)}"
            )
        label = self._dag.get_edge_info(upstream, task.task_id).get("label") or ""
        return Link.parse(upstream, label) or Link(upstream, _MEANT[rule])
