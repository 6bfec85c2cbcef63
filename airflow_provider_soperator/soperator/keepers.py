"""Who has made an object, and would sooner or later undo what others change of it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_soperator.soperator.conditions import Object

_FLUX = "helm.toolkit.fluxcd.io"
_HELM = "meta.helm.sh/release-name"


@dataclass(frozen=True)
class Keeper:
    """What keeps an object as it is written elsewhere, and where that is."""

    name: str
    #: How a change lasts.
    remedy: str
    is_helm: bool = False

    def warning(self, replicas: int) -> str:
        """What becomes of a NodeSet's number of replicas, and what to do about it."""
        said = f"{self.name} sets the number of replicas back when it is applied or upgraded next: {self.remedy}"
        # `default 1` takes a zero for nothing.
        quirk = ". Soperator's chart makes 1 of replicas: 0" if self.is_helm and replicas == 0 else ""
        return said + quirk


def keeper_of(thing: Object) -> Keeper | None:
    """As labels and annotations say; failing that, whoever is known to have written its spec.

    >>> release = {"helm.toolkit.fluxcd.io/name": "nodesets", "helm.toolkit.fluxcd.io/namespace": "flux-system"}
    >>> keeper_of({"metadata": {"labels": release}}).name
    'the HelmRelease flux-system/nodesets'
    """
    metadata = thing["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    managers = {str(one.get("manager")).lower() for one in metadata.get("managedFields") or () if _wrote_spec(one)}
    if f"{_FLUX}/name" in labels:
        name = f"{labels.get(f'{_FLUX}/namespace', 'flux-system')}/{labels[f'{_FLUX}/name']}"
        return Keeper(f"the HelmRelease {name}", _FLUX_REMEDY, is_helm=True)
    if "helm-controller" in managers:
        return Keeper("a HelmRelease of Flux", _FLUX_REMEDY, is_helm=True)
    if _HELM in annotations:
        return Keeper(f"the Helm release {annotations[_HELM]}", _HELM_REMEDY, is_helm=True)
    if "helm" in managers:
        return Keeper("a Helm release", _HELM_REMEDY, is_helm=True)
    if any("terraform" in manager for manager in managers):
        return Keeper("Terraform", "change it in its configuration, too")
    return None


_FLUX_REMEDY = (
    "set it in the recipe's slurm_nodeset_workers (size), too, or in the ConfigMap nodesets (key values.yaml) in "
    "flux-system"
)
_HELM_REMEDY = "set it in the values of the release, too"


def _wrote_spec(entry: Object) -> bool:
    # Whoever scales it takes the replicas over, and the others keep the rest.
    return "f:spec" in (entry.get("fieldsV1") or {})
