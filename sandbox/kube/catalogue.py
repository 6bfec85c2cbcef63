"""The kinds of object that the double serves."""

from __future__ import annotations

from sandbox.kube import printers
from sandbox.kube.chart_kinds import CHART_KINDS
from sandbox.kube.kinds import Column, Kind, Kinds, ScalePaths

AGE = Column("Age", "metadata.creationTimestamp", "date")
READY = Column("Ready", "status.conditions[Ready].status")
SLURM = "slurm.nebius.ai"

NAMESPACE = Kind(
    "",
    "v1",
    "Namespace",
    "namespaces",
    namespaced=False,
    short_names=("ns",),
    has_generation=False,
    columns=(Column("Status", "status.phase"), AGE),
    defaults={"status.phase": "Active"},
)
NODE = Kind(
    "",
    "v1",
    "Node",
    "nodes",
    namespaced=False,
    short_names=("no",),
    has_generation=False,
    columns=(
        Column("Status", printers.node_status),
        Column("Roles", printers.node_roles),
        AGE,
        Column("Version", "status.nodeInfo.kubeletVersion"),
        Column("Internal-IP", printers.node_address, priority=1),
    ),
)
POD = Kind(
    "",
    "v1",
    "Pod",
    "pods",
    short_names=("po",),
    categories=("all",),
    has_generation=False,
    columns=(
        Column("Ready", printers.pod_ready),
        Column("Status", printers.pod_status),
        Column("Restarts", printers.pod_restarts),
        AGE,
        Column("IP", "status.podIP", priority=1),
        Column("Node", "spec.nodeName", priority=1),
    ),
    others={"exec": ("create", "get"), "log": ("get",), "eviction": ("create",)},
    defaults={"status.phase": "Pending"},
)
EVENT = Kind(
    "",
    "v1",
    "Event",
    "events",
    short_names=("ev",),
    has_status=False,
    has_generation=False,
    columns=(
        Column("Last Seen", printers.event_last_seen),
        Column("Type", "type"),
        Column("Reason", "reason"),
        Column("Object", printers.event_object),
        Column("Message", "message"),
        Column("Name", "metadata.name", priority=1),
    ),
)
SECRET = Kind(
    "",
    "v1",
    "Secret",
    "secrets",
    has_status=False,
    has_generation=False,
    columns=(Column("Type", "type"), Column("Data", printers.data_count, "integer"), AGE),
    defaults={"type": "Opaque"},
)
CONFIG_MAP = Kind(
    "",
    "v1",
    "ConfigMap",
    "configmaps",
    short_names=("cm",),
    has_status=False,
    has_generation=False,
    columns=(Column("Data", printers.data_count, "integer"), AGE),
)
SERVICE = Kind(
    "",
    "v1",
    "Service",
    "services",
    short_names=("svc",),
    categories=("all",),
    has_generation=False,
    columns=(
        Column("Type", "spec.type"),
        Column("Cluster-IP", "spec.clusterIP"),
        Column("External-IP", printers.service_external_ip),
        Column("Port(s)", printers.service_ports),
        AGE,
    ),
)
DEPLOYMENT = Kind(
    "apps",
    "v1",
    "Deployment",
    "deployments",
    short_names=("deploy",),
    categories=("all",),
    scale=ScalePaths(),
    columns=(
        Column("Ready", printers.replicas_ready),
        Column("Up-to-date", printers.count("status.updatedReplicas"), "integer"),
        Column("Available", printers.count("status.availableReplicas"), "integer"),
        AGE,
    ),
    defaults={"spec.replicas": 1},
)
STATEFUL_SET = Kind(
    "apps",
    "v1",
    "StatefulSet",
    "statefulsets",
    short_names=("sts",),
    categories=("all",),
    scale=ScalePaths(),
    columns=(Column("Ready", printers.replicas_ready), AGE),
    defaults={"spec.replicas": 1},
)
JOB = Kind(
    "batch",
    "v1",
    "Job",
    "jobs",
    categories=("all",),
    columns=(
        Column("Status", printers.job_status),
        Column("Completions", printers.job_completions),
        Column("Duration", printers.job_duration),
        AGE,
    ),
)
CRON_JOB = Kind(
    "batch",
    "v1",
    "CronJob",
    "cronjobs",
    short_names=("cj",),
    categories=("all",),
    # kubectl before 1.21 can make a job only from this version.
    also_versions=("v1beta1",),
    columns=(
        Column("Schedule", "spec.schedule"),
        Column("Suspend", printers.cron_job_suspend, "boolean"),
        Column("Active", printers.cron_job_active, "integer"),
        Column("Last Schedule", printers.cron_job_last),
        AGE,
    ),
)
#: As in pkg/registry/coordination/lease/strategy.go of Kubernetes.
LEASE = Kind(
    "coordination.k8s.io",
    "v1",
    "Lease",
    "leases",
    has_status=False,
    has_generation=False,
    needs_version=True,
    made_by_update=True,
    columns=(Column("Holder", "spec.holderIdentity"), AGE),
)
POD_DISRUPTION_BUDGET = Kind(
    "policy",
    "v1",
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    short_names=("pdb",),
    columns=(
        Column("Min Available", "spec.minAvailable"),
        Column("Max Unavailable", "spec.maxUnavailable"),
        Column("Allowed Disruptions", "status.disruptionsAllowed", "integer"),
        AGE,
    ),
)
SLURM_CLUSTER = Kind(
    SLURM,
    "v1",
    "SlurmCluster",
    "slurmclusters",
    custom=True,
    columns=(
        Column("Status", "status.phase"),
        Column("Controllers", "status.conditions[ControllersAvailable].status"),
        Column("Login", "status.readyLogin", "integer"),
        Column("SConfigCtrl", "status.conditions[SConfigControllerAvailable].status"),
        Column("Accounting", "status.conditions[AccountingAvailable].status"),
    ),
)
NODE_SET = Kind(
    SLURM,
    "v1alpha1",
    "NodeSet",
    "nodesets",
    custom=True,
    scale=ScalePaths(selector="status.labelSelector"),
    columns=(
        Column("Status", "status.phase"),
        Column("Desired", "spec.replicas", "integer"),
        Column("Ready", "status.replicas", "integer"),
        Column("Ephemeral", "spec.ephemeralNodes", "boolean"),
    ),
    defaults={"spec.replicas": 1},
)
NODE_SET_POWER_STATE = Kind(
    SLURM,
    "v1alpha1",
    "NodeSetPowerState",
    "nodesetpowerstates",
    custom=True,
    columns=(
        Column("NodeSet", "spec.nodeSetRef"),
        Column("Active", "status.activeCount", "integer"),
        READY,
        AGE,
    ),
)
ACTIVE_CHECK = Kind(
    SLURM,
    "v1alpha1",
    "ActiveCheck",
    "activechecks",
    custom=True,
    columns=(
        Column("Type", "spec.checkType"),
        Column("Init", "spec.runAfterCreation", "boolean"),
        Column("Suspend", "spec.suspend", "boolean"),
        Column("Schedule", "spec.schedule"),
        Column("K8s Status", "status.k8sJobsStatus.lastJobStatus"),
        Column("Slurm Status", "status.slurmJobsStatus.lastRunStatus"),
        Column("Slurm Submit Time", "status.slurmJobsStatus.lastRunSubmitTime"),
        Column("Slurm ID", "status.slurmJobsStatus.lastRunId"),
        AGE,
    ),
    defaults={
        "spec.checkType": "k8sJob",
        "spec.schedule": "0 0 1 1 *",
        "spec.suspend": True,
        "spec.runAfterCreation": True,
        "spec.successfulJobsHistoryLimit": 3,
        "spec.failedJobsHistoryLimit": 16,
    },
)
SCALED_OBJECT = Kind(
    "keda.sh",
    "v1alpha1",
    "ScaledObject",
    "scaledobjects",
    short_names=("so",),
    custom=True,
    columns=(
        Column("ScaleTargetName", "spec.scaleTargetRef.name"),
        Column("Min", "spec.minReplicaCount", "integer"),
        Column("Max", "spec.maxReplicaCount", "integer"),
        READY,
        Column("Active", "status.conditions[Active].status"),
        AGE,
    ),
)
HELM_RELEASE = Kind(
    "helm.toolkit.fluxcd.io",
    "v2",
    "HelmRelease",
    "helmreleases",
    short_names=("hr",),
    custom=True,
    columns=(AGE, READY, Column("Status", "status.conditions[Ready].message")),
)
HORIZONTAL_POD_AUTOSCALER = Kind(
    "autoscaling",
    "v2",
    "HorizontalPodAutoscaler",
    "horizontalpodautoscalers",
    short_names=("hpa",),
    categories=("all",),
    columns=(
        Column("MinPods", "spec.minReplicas", "integer"),
        Column("MaxPods", "spec.maxReplicas", "integer"),
        Column("Replicas", "status.currentReplicas", "integer"),
        AGE,
    ),
    defaults={"spec.minReplicas": 1},
)
LEADER_WORKER_SET = Kind(
    "leaderworkerset.x-k8s.io",
    "v1",
    "LeaderWorkerSet",
    "leaderworkersets",
    short_names=("lws",),
    custom=True,
    scale=ScalePaths(selector="status.hpaPodSelector"),
    columns=(
        Column("Ready", "status.readyReplicas", "integer"),
        Column("Desired", "spec.replicas", "integer"),
        AGE,
    ),
    defaults={"spec.replicas": 1},
)

KINDS = Kinds(
    (
        NAMESPACE,
        NODE,
        POD,
        EVENT,
        SECRET,
        CONFIG_MAP,
        SERVICE,
        DEPLOYMENT,
        STATEFUL_SET,
        JOB,
        CRON_JOB,
        LEASE,
        POD_DISRUPTION_BUDGET,
        SLURM_CLUSTER,
        NODE_SET,
        NODE_SET_POWER_STATE,
        ACTIVE_CHECK,
        SCALED_OBJECT,
        HELM_RELEASE,
        HORIZONTAL_POD_AUTOSCALER,
        LEADER_WORKER_SET,
        *CHART_KINDS,
    )
)
