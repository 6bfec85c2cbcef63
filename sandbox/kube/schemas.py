"""What Soperator's kinds require and know: the fields of 4.1 and those that 5.0 has added, in few words.

Where a field holds one of Kubernetes' own shapes (a volume, a container's resources, an affinity), anything goes.
"""

from __future__ import annotations

from sandbox.kube.catalogue import ACTIVE_CHECK, NODE_SET, NODE_SET_POWER_STATE, SLURM_CLUSTER
from sandbox.kube.kinds import Kind
from sandbox.kube.structure import Shape, shape

_COMMON = """\
image: &image {repository*: string, tag: string, pullPolicy: Always|Never|IfNotPresent}
probe: &probe object
security: &security {appArmorProfile: string, limitsConfig: string, procMount: Default|Unmasked}
container: &container
  image*: string
  imagePullPolicy: Always|Never|IfNotPresent
  imagePullSecrets: [object]
  resources: object
  port: integer
  command: [string]
  args: [string]
  livenessProbe: *probe
  readinessProbe: *probe
  appArmorProfile: string
  procMount: Default|Unmasked
  securityLimitsConfig: string
  customEnv: [object]
worker: &worker
  image*: *image
  resources*: object
  livenessProbe: *probe
  readinessProbe: *probe
  security: *security
role: &role
  k8sNodeFilterName*: string
  priorityClass: string
  hostUsers: boolean
  customInitContainers: [object]
check: &check
  image: string
  imagePullPolicy: Always|Never|IfNotPresent
  imagePullSecrets: [object]
  command: [string]
  args: [string]
  env: [object]
  volumeMounts: [object]
  volumes: [object]
  workingDir: string
  appArmorProfile: string
reactions: &reactions
  drainSlurmNode: {drainReasonPrefix: string}
  commentSlurmNode: {commentPrefix: string}
  addReservation: {prefix: string}
  removeReservation: {prefix: string}
"""

_SLURM_CLUSTER = """\
crVersion: string
maintenance: none|downscale|downscaleAndDeletePopulateJail|downscaleAndOverwritePopulateJail|skipPopulateJail
cgroupVersion: v1|v2
useDefaultAppArmorProfile: boolean
k8sNodeFilters*: [{name*: string, affinity: object, nodeSelector: object, tolerations: [object]}]
populateJail*:
  image*: string
  imagePullPolicy: Always|Never|IfNotPresent
  imagePullSecrets: [object]
  k8sNodeFilterName*: string
  appArmorProfile: string
  hostUsers: boolean
  jailSnapshotVolume: object
  overwrite: boolean
  priorityClass: string
volumeSources: [object]
secrets*: {sshdKeysName: string}
partitionConfiguration:
  configType: default|custom|structured
  rawConfig: [string]
  partitions: [{name*: string, isAll: boolean, nodeSetRefs: [string], config: string}]
slurmConfig:
  completeWait: integer
  defCpuPerGPU: integer
  defMemPerNode: integer
  epilog: string
  prolog: string
  maxJobCount: integer
  messageTimeout: integer
  minJobAge: integer
  resumeTimeout: integer
  suspendTime: integer
  taskPluginParam: string
  taskProlog: string
  topologyParam: string
  topologyPlugin: string
customSlurmConfig: string
customCgroupConfig: string
mpiConfig: {pmixEnv: string}
plugStackConfig: object
sConfigController: object
healthCheckConfig: {healthCheckInterval*: integer, healthCheckProgram*: string, healthCheckNodeState*: [object]}
topology: {blockSize: integer}
slurmNodes*:
  accounting*:
    <<: *role
    size: integer
    enabled: boolean
    externalDB: object
    mariadbOperator: object
    munge: *container
    slurmConfig: object
    slurmdbd: *container
    slurmdbdConfig: object
  controller*:
    <<: *role
    munge*: *container
    openMetrics: object
    serviceAccountName: string
    slurmctld*: *container
    sssd: *container
    sssdConfSecretRefName: string
    sssdDebugLevel: integer
    sssdLdapCAConfigMapRefName: string
    volumes*: object
  exporter*:
    <<: *role
    size: integer
    accountingJobsLookback: string
    collectionInterval: string
    enabled: boolean
    exporter: object
    exporterContainer: object
    jobSource: accounting|controller
    maxCollectorInflight: integer
    munge: *container
    podMonitorConfig: object
    serviceAccountName: string
    volumes: object
  login*:
    <<: *role
    size: integer
    munge*: *container
    sshRootPublicKeys*: [string]
    sshd*: *container
    sshdConfigMapRefName: string
    sshdServiceAnnotations: object
    sshdServiceLoadBalancerIP: string
    sshdServiceLoadBalancerSourceRanges: [string]
    sshdServiceNodePort: integer
    sshdServiceType*: string
    sssd: *container
    sssdConfSecretRefName: string
    sssdDebugLevel: integer
    sssdLdapCAConfigMapRefName: string
    userIsolation: object
    volumes*: object
  rest*:
    <<: *role
    size: integer
    enabled: boolean
    maxConnections: integer
    rest: object
    threadCount: integer
"""

_NODE_SET = """\
clusterName: string
replicas: integer
maxUnavailable: integer or string
updateStrategy: rollingUpdate|slurmAwareRollingUpdate
ephemeralNodes: boolean
initialNumberEphemeralNodes: integer
ephemeralTopologyWaitTimeout: integer
workerInitRandomDelaySeconds: integer
enableHostUserNamespace: boolean
gpu: {enabled: boolean, nvidia: {gdrCopyEnabled: boolean}}
docker: {enabled: boolean}
topology: {fabric: string}
nodeConfig: {features: [string], static: string, dynamic: string, gresConfig: [string], autoResume: boolean}
slurmd*:
  <<: *worker
  port: integer
  customEnv: [object]
  volumes*:
    spool*: object
    jail*: object
    jailSubMounts: [object]
    customVolumeMounts: [object]
    sharedMemorySize: integer or string
    persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain|Delete, whenScaled: Retain|Delete}
munge*: *worker
sssd: *worker
sssdConfSecretRefName: string
sssdDebugLevel: integer
sssdLdapCAConfigMapRefName: string
configMapRefSshd: string
configMapRefSupervisord: string
nodeSelector: object
affinity: object
tolerations: [object]
priorityClass: string
workerAnnotations: object
customInitContainers: [object]
imagePullSecrets: [object]
"""

_POWER_STATE = "{nodeSetRef*: string, activeNodes: [integer]}"

_ACTIVE_CHECK = """\
name*: string
slurmClusterRefName*: string
checkType: k8sJob|slurmJob
dependsOn: [string]
schedule: string
suspend: boolean
runAfterCreation: boolean
activeDeadlineSeconds: integer
successfulJobsHistoryLimit: integer
failedJobsHistoryLimit: integer
hostUsers: boolean
affinity: object
nodeSelector: object
tolerations: [object]
podTemplateNameRef: string
k8sJobSpec: {jobContainer: *check, mungeContainer: *check, scriptRefName: string}
slurmJobSpec:
  jobContainer: *check
  mungeContainer: *check
  sbatchScript: string
  sbatchScriptRefName: string
  eachWorkerJobs: boolean
  maxNumberOfJobs: integer
successReactions: *reactions
failureReactions: *reactions
"""


def _with_common(text: str) -> Shape:
    inside = "".join(f"  {line}\n" for line in text.splitlines())
    found = shape(f"{_COMMON}wanted:\n{inside}").fields
    assert found is not None
    return found["wanted"]


_SHAPES = {
    kind.resource: _with_common(text)
    for kind, text in (
        (SLURM_CLUSTER, _SLURM_CLUSTER),
        (NODE_SET, _NODE_SET),
        (NODE_SET_POWER_STATE, _POWER_STATE),
        (ACTIVE_CHECK, _ACTIVE_CHECK),
    )
}


def shape_of(kind: Kind) -> Shape | None:
    """What the specification of a kind has to look like; None for one that may hold anything."""
    return _SHAPES.get(kind.resource)
