"""The kinds that the charts of an installation bring along: storage, rights, monitoring, backups, Flux's sources."""

from __future__ import annotations

from sandbox.kube import printers
from sandbox.kube.kinds import Column, Kind

AGE = Column("Age", "metadata.creationTimestamp", "date")
READY = Column("Ready", "status.conditions[Ready].status")
RBAC = "rbac.authorization.k8s.io"


def _plain(
    group: str,
    version: str,
    kind: str,
    plural: str,
    *columns: Column,
    short: tuple[str, ...] = (),
    cluster: bool = False,
    custom: bool = False,
    status: bool = False,
    generation: bool | None = None,
    defaults: dict[str, object] | None = None,
) -> Kind:
    """A kind that is kept as it is given; only its names and columns are its own."""
    return Kind(
        group,
        version,
        kind,
        plural,
        namespaced=not cluster,
        short_names=short,
        columns=(*columns, AGE),
        has_status=status or custom,
        has_generation=custom or status if generation is None else generation,
        custom=custom,
        defaults=defaults or {},
    )


SERVICE_ACCOUNT = Kind(
    "",
    "v1",
    "ServiceAccount",
    "serviceaccounts",
    short_names=("sa",),
    has_status=False,
    has_generation=False,
    columns=(Column("Secrets", printers.length_of("secrets"), "integer"), AGE),
    others={"token": ("create",)},
)
ROLE = _plain(RBAC, "v1", "Role", "roles")
ROLE_BINDING = _plain(RBAC, "v1", "RoleBinding", "rolebindings", Column("Role", printers.role_of_binding))
CLUSTER_ROLE = _plain(RBAC, "v1", "ClusterRole", "clusterroles", cluster=True)
CLUSTER_ROLE_BINDING = _plain(
    RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", Column("Role", printers.role_of_binding), cluster=True
)
PERSISTENT_VOLUME = _plain(
    "",
    "v1",
    "PersistentVolume",
    "persistentvolumes",
    Column("Capacity", "spec.capacity.storage"),
    Column("Status", "status.phase"),
    Column("StorageClass", "spec.storageClassName"),
    short=("pv",),
    cluster=True,
    status=True,
    generation=False,
    defaults={"spec.persistentVolumeReclaimPolicy": "Retain", "status.phase": "Available"},
)
PERSISTENT_VOLUME_CLAIM = _plain(
    "",
    "v1",
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    Column("Status", "status.phase"),
    Column("Volume", "spec.volumeName"),
    Column("Capacity", "status.capacity.storage"),
    Column("StorageClass", "spec.storageClassName"),
    short=("pvc",),
    status=True,
    generation=False,
    defaults={"status.phase": "Pending"},
)
STORAGE_CLASS = _plain(
    "storage.k8s.io",
    "v1",
    "StorageClass",
    "storageclasses",
    Column("Provisioner", "provisioner"),
    short=("sc",),
    cluster=True,
    defaults={"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"},
)
DAEMON_SET = Kind(
    "apps",
    "v1",
    "DaemonSet",
    "daemonsets",
    short_names=("ds",),
    categories=("all",),
    columns=(
        Column("Desired", printers.count("status.desiredNumberScheduled"), "integer"),
        Column("Current", printers.count("status.currentNumberScheduled"), "integer"),
        Column("Ready", printers.count("status.numberReady"), "integer"),
        AGE,
    ),
)
#: As in v2.13.1 of k8up, which Soperator's charts install.
BACKUP = _plain(
    "k8up.io",
    "v1",
    "Backup",
    "backups",
    Column("Schedule Ref", printers.owner("Schedule")),
    Column("Completion", "status.conditions[Completed].reason"),
    Column("PreBackup", "status.conditions[PreBackupPodReady].reason"),
    custom=True,
)
SCHEDULE = _plain("k8up.io", "v1", "Schedule", "schedules", custom=True)
HELM_REPOSITORY = _plain(
    "source.toolkit.fluxcd.io",
    "v1",
    "HelmRepository",
    "helmrepositories",
    Column("URL", "spec.url"),
    READY,
    short=("helmrepo",),
    custom=True,
)
_ESTABLISHED = [
    {"type": type_, "status": "True", "reason": reason, "message": message}
    for type_, reason, message in (
        ("NamesAccepted", "NoConflicts", "no conflicts found"),
        ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
    )
]
CUSTOM_RESOURCE_DEFINITION = Kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
    short_names=("crd", "crds"),
    columns=(Column("Created At", "metadata.creationTimestamp"),),
    # It defines nothing here: which kinds there are is fixed.
    defaults={"status.conditions": _ESTABLISHED},
)

CHART_KINDS = (
    SERVICE_ACCOUNT,
    ROLE,
    ROLE_BINDING,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    DAEMON_SET,
    BACKUP,
    SCHEDULE,
    HELM_REPOSITORY,
    CUSTOM_RESOURCE_DEFINITION,
    _plain(
        "scheduling.k8s.io",
        "v1",
        "PriorityClass",
        "priorityclasses",
        Column("Value", "value", "integer"),
        Column("Global-Default", printers.truth("globalDefault"), "boolean"),
        short=("pc",),
        cluster=True,
        defaults={"preemptionPolicy": "PreemptLowerPriority"},
    ),
    STORAGE_CLASS,
    _plain("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", short=("netpol",), generation=True),
    _plain("networking.k8s.io", "v1", "Ingress", "ingresses", short=("ing",), status=True),
    *(
        _plain("admissionregistration.k8s.io", "v1", kind, f"{kind.lower()}s", cluster=True, generation=True)
        for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    ),
    _plain("cert-manager.io", "v1", "Certificate", "certificates", READY, short=("cert", "certs"), custom=True),
    _plain("cert-manager.io", "v1", "Issuer", "issuers", READY, custom=True),
    _plain("source.toolkit.fluxcd.io", "v1", "OCIRepository", "ocirepositories", short=("ocirepo",), custom=True),
    _plain("source.toolkit.fluxcd.io", "v1", "HelmChart", "helmcharts", short=("hc",), custom=True),
    _plain("slurm.nebius.ai", "v1alpha1", "NodeConfigurator", "nodeconfigurators", custom=True),
    _plain("slurm.nebius.ai", "v1alpha1", "JailedConfig", "jailedconfigs", custom=True),
    _plain("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors", short=("smon",), custom=True),
    _plain("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", short=("pmon",), custom=True),
    _plain("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", short=("promrule",), custom=True),
    *(
        _plain("operator.victoriametrics.com", "v1beta1", kind, f"{kind.lower()}s", custom=True)
        for kind in ("VMAlert", "VMAlertmanager", "VMAlertmanagerConfig", "VMRule")
    ),
)
