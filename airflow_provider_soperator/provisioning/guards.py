"""What stops an apply: jobs, nodes or a release would be lost, and it is not allowed.

First `ProvisionClusterOperator._refuse` looks at the jail and its backup, jobs, an existing cluster, and NodeSets of a
recipe; then `guard` of the provisioner at the rest; last `ProvisioningPlan.check_agreed` at what was approved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from airflow_provider_soperator.provisioning.fields import SpecMistake, given, is_since, release_of
from airflow_provider_soperator.slurm.hostlist import fold
from airflow_provider_soperator.soperator.kinds import NODE_SET

if TYPE_CHECKING:
    from airflow_provider_soperator.provisioning.spec import ClusterSpec
    from airflow_provider_soperator.slurm.job_records import Job
    from airflow_provider_soperator.soperator.clusters import ClusterSnapshot, NodeSetSeen
    from airflow_provider_soperator.terraform.plan import ResourceChange, TerraformPlan

_NODE_GROUP = "nebius_mk8s_v1_node_group"
#: Fields of a node group's template that only new machines get.
_NEVER_ROLL = ("metadata", "taints")
#: By releases of Helm, Soperator is installed: before the first of them is finished, no cluster can be in use.
RELEASE = "helm_release"
#: The end of the name of the chart whose version is the release of Soperator; in older recipes, of a chart's setting.
_BOOTSTRAP, _SOPERATOR = "soperator-fluxcd-bootstrap", "soperator_version"


def refuse_jobs(jobs: Sequence[Job], where: str, remedy: str) -> None:
    """Raise ``SpecMistake`` if there are any."""
    if jobs:
        shown = ", ".join(f"{job.id} of {job.user}" for job in jobs[:5])
        more = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
        raise SpecMistake(f"there are {where} ({shown}{more}): wait for them, or {remedy}")


def refuse_ended_jobs(jobs: Sequence[Job], spec: ClusterSpec, kept: Set[str] | None) -> None:
    """Raise ``SpecMistake`` for jobs that a cluster ends as it goes down, or as only the ``kept`` partitions stay."""
    remedy = "set allow_destroy=['jobs'], as"
    if spec.is_taken_down:
        running = [job for job in jobs if job.state.is_active]
        refuse_jobs(running, "running jobs", f"{remedy} maintenance={spec.maintenance!r} ends them")
    if kept is not None:
        # Of its partitions a running job may have any, and a pending job can do with what is left.
        named = [(job, set(job.partition.split(","))) for job in jobs]
        lost = [job for job, names in named if not (names <= kept if job.state.is_active else names & kept)]
        where = f"jobs in other partitions than {', '.join(sorted(kept))}"
        refuse_jobs(lost, where, f"keep theirs in the spec, or {remedy} Slurm kills jobs whose partition goes")


def refuse_ended_nodes(ended: Mapping[str, str], allowed: Sequence[str]) -> None:
    """Raise ``SpecMistake`` if nodes that are on would end or start anew, and their NodeSet is not ``allowed``."""
    for name, how in ended.items():
        if name not in allowed:
            raise SpecMistake(
                f"rejected, nothing was changed: {name} would {how}, which are on, and jobs on them are killed; "
                "power them down first, or use ScaleNodeSetOperator, which drains nodes before they go; if no job "
                f"runs there, set allow_destroy=[{name!r}]"
            )


def ended_by_recipe(seen: ClusterSnapshot, spec: ClusterSpec) -> dict[str, str]:
    """How static NodeSets would become ephemeral and end nodes that are on, which no plan of Terraform shows."""
    parts = {name: one for one in spec.nodesets for name in one.slurm_names if one.ephemeral}
    found = {}
    for one in seen.nodesets:
        if (part := parts.get(one.name)) and not one.is_ephemeral:
            becomes = given(ephemeralNodes=True, replicas=one.replicas, initialNumberEphemeralNodes=part.initial)
            found[f"{NODE_SET.kind}/{one.name}"] = ended_nodes(one, becomes, spec.operator_version)
    return {label: how for label, how in found.items() if how}


def nodes_on(one: NodeSetSeen) -> set[str]:
    return {*one.pods, *(one.active_nodes if one.is_ephemeral else ())}


def ended_nodes(one: NodeSetSeen, spec: Mapping[str, Any], version: str) -> str:
    """How a NodeSet with this spec would end nodes that are on; empty if it would not."""
    stay, becomes = set(range(int(spec.get("replicas", 1)))), "shrink"
    if spec.get("ephemeralNodes") and not one.is_ephemeral:
        stay, becomes = stay & _first_on(one, spec, version), "become ephemeral"
    ended = nodes_on(one) & {*one.names(set(range(one.replicas)) - stay)}
    return f"{becomes} and lose {fold(ended)}" if ended else ""


def _first_on(one: NodeSetSeen, spec: Mapping[str, Any], version: str) -> set[int]:
    """The ordinals that are on when a static NodeSet becomes ephemeral."""
    if one.active is not None:
        # It was ephemeral before.
        return set(one.active)
    return set(range(int(spec.get("initialNumberEphemeralNodes", 1)) if is_since(version, 4, 0) else one.replicas))


def lost_nodes(plan: TerraformPlan) -> Iterator[tuple[ResourceChange, str]]:
    """The node groups that lose machines, and the jobs on them, by what is an update for Terraform, and how."""
    for one in plan.changes:
        if one.type == _NODE_GROUP and one.action == "update" and (how := _lost(one)):
            yield one, how


def refuse_lost_nodes(plan: TerraformPlan, allowed: Sequence[str]) -> None:
    """Raise ``SpecMistake`` if a node group loses machines, and its address is not ``allowed``."""
    for one, how in lost_nodes(plan):
        if not one.is_among(allowed):
            raise SpecMistake(
                f"rejected, nothing was changed: {how}; jobs on machines that go are killed: if none runs there, set "
                f"allow_destroy=[{one.address!r}]"
            )


def other_releases(plan: TerraformPlan) -> Iterator[tuple[ResourceChange, str, str]]:
    """The change by which Soperator is of another release, with that of before and that of then."""
    for one in plan.changes:
        was, becomes = (_soperator(said) for said in (one.before, one.after))
        if one.type == RELEASE and was and becomes and was != becomes:
            yield one, was, becomes


def _soperator(helm: Mapping[str, Any]) -> str:
    if str(helm.get("chart") or "").endswith(_BOOTSTRAP):
        return str(helm.get("version") or "")
    said = (setting for setting in helm.get("set") or () if setting["name"].endswith(_SOPERATOR))
    return next((str(setting.get("value") or "") for setting in said), "")


def refuse_older_release(plan: TerraformPlan, allowed: Sequence[str]) -> None:
    """Raise ``SpecMistake`` if Soperator goes back to an older release, and the address is not ``allowed``."""
    for one, was, becomes in other_releases(plan):
        if release_of(becomes) < release_of(was) and not one.is_among(allowed):
            raise SpecMistake(
                f"rejected, nothing was changed: Soperator would go back from {was} to {becomes}: set operator_version "
                f"to {was} or a newer one, or allow_destroy=[{one.address!r}]"
            )


def _lost(one: ResourceChange) -> str:
    was, becomes = one.before.get("name"), one.after.get("name")
    if was and becomes and was != becomes:
        # The recipe numbers its node groups.
        return (
            f"{one.address} would turn from {was} into {becomes} in place: keep the order of nodesets in the spec, and "
            "add new ones at the end"
        )
    before, after = size(one.before), size(one.after)
    if before is not None and after is not None and after < before:
        return f"the node group {was or one.address} would shrink from {before} to {after} machines"
    changed = ", ".join(_rolling(one.before, one.after))
    return f"all machines of {was or one.address} would be replaced, {changed}" if changed else ""


def _rolling(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """The changes for which Nebius replaces all machines of a node group, as far as the plan says."""
    had, gets = (one.get("template") or {} for one in (before, after))
    said = [(one.get("resources") or {}).get for one in (had, gets)]
    kinds = [" ".join(filter(None, map(get, ("platform", "preset")))) for get in said]
    versions = [one.get("version") for one in (before, after)]
    for what, (was, becomes) in (("", kinds), ("Kubernetes ", versions)):
        if was and becomes and was != becomes:
            yield f"{what}{was} by {becomes}"
    for name in gets if had else ():
        if name not in ("resources", *_NEVER_ROLL) and _is_other(had.get(name), gets[name]):
            # Not its value, which may be a secret.
            yield f"for another {name}"


def _is_other(before: Any, after: Any) -> bool:
    """True if a value changes, as far as it is known: the plan leaves out others, or has null for those of a list."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return any(_is_other(before.get(name), value) for name, value in after.items())
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return any(_is_other(*pair) for pair in zip(before, after, strict=True) if pair[1] is not None)
    return bool(before != after)


def size(group: Mapping[str, Any]) -> int | None:
    """The number of machines that a node group may have; None if the plan does not say.

    >>> size({"fixed_node_count": 2}), size({"autoscaling": {"min_node_count": 0, "max_node_count": 8}}), size({})
    (2, 8, None)
    """
    fixed, scaled = group.get("fixed_node_count"), group.get("autoscaling") or {}
    said = fixed if fixed is not None else scaled.get("max_node_count")
    return None if said is None else int(said)
