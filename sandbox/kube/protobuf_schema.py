"""The protobuf messages of the built-in objects that kubectl creates in that encoding, as data."""

from __future__ import annotations

#: Each message and its fields: number, name, and type unless it is a string. ``[]`` is a list, ``map:`` a map
#: from strings; ``!`` marks a message whose fields belong to the object around it, ``-`` what is not read.
MESSAGES = """
Job: 1=metadata:ObjectMeta 2=spec:JobSpec 3=status:-
Deployment: 1=metadata:ObjectMeta 2=spec:DeploymentSpec 3=status:-
Namespace: 1=metadata:ObjectMeta 2=spec:NamespaceSpec 3=status:-
ConfigMap: 1=metadata:ObjectMeta 2=data:map:string 3=binaryData:map:bytes 4=immutable:bool
DeleteOptions: 1=gracePeriodSeconds:int 2=preconditions:Preconditions 3=orphanDependents:bool
  4=propagationPolicy 5=dryRun:string[]
Preconditions: 1=uid 2=resourceVersion
ServiceAccount: 1=metadata:ObjectMeta 3=imagePullSecrets:LocalObjectReference[]
  4=automountServiceAccountToken:bool
Role: 1=metadata:ObjectMeta 2=rules:PolicyRule[]
ClusterRole: 1=metadata:ObjectMeta 2=rules:PolicyRule[]
RoleBinding: 1=metadata:ObjectMeta 2=subjects:Subject[] 3=roleRef:RoleRef
ClusterRoleBinding: 1=metadata:ObjectMeta 2=subjects:Subject[] 3=roleRef:RoleRef
PolicyRule: 1=verbs:string[] 2=apiGroups:string[] 3=resources:string[] 4=resourceNames:string[]
  5=nonResourceURLs:string[]
Subject: 1=kind 2=apiGroup 3=name 4=namespace
RoleRef: 1=apiGroup 2=kind 3=name
TokenRequest: 1=metadata:ObjectMeta 2=spec:TokenRequestSpec 3=status:-
TokenRequestSpec: 1=audiences:string[] 3=boundObjectRef:- 4=expirationSeconds:int
SelfSubjectAccessReview: 1=metadata:ObjectMeta 2=spec:SelfSubjectAccessReviewSpec 3=status:-
SelfSubjectAccessReviewSpec: 1=resourceAttributes:ResourceAttributes 2=nonResourceAttributes:NonResourceAttributes
ResourceAttributes: 1=namespace 2=verb 3=group 4=version 5=resource 6=subresource 7=name 8=fieldSelector:-
  9=labelSelector:-
NonResourceAttributes: 1=path 2=verb
PriorityClass: 1=metadata:ObjectMeta 2=value:int 3=globalDefault:bool 4=description 5=preemptionPolicy
Secret: 1=metadata:ObjectMeta 2=data:map:bytes 3=type 4=stringData:map:string 5=immutable:bool
ObjectMeta: 1=name 2=generateName 3=namespace 4=selfLink 5=uid 6=resourceVersion 7=generation:int
  8=creationTimestamp:Time 9=deletionTimestamp:Time 10=deletionGracePeriodSeconds:int
  11=labels:map:string 12=annotations:map:string 13=ownerReferences:OwnerReference[]
  14=finalizers:string[]
JobSpec: 1=parallelism:int 2=completions:int 3=activeDeadlineSeconds:int 4=selector:LabelSelector
  5=manualSelector:bool 6=template:PodTemplateSpec 7=backoffLimit:int 8=ttlSecondsAfterFinished:int
  9=completionMode 10=suspend:bool 12=backoffLimitPerIndex:int 13=maxFailedIndexes:int
  14=podReplacementPolicy 15=managedBy
DeploymentSpec: 1=replicas:int 2=selector:LabelSelector 3=template:PodTemplateSpec
  4=strategy:DeploymentStrategy 5=minReadySeconds:int 6=revisionHistoryLimit:int 7=paused:bool
  9=progressDeadlineSeconds:int
NamespaceSpec: 1=finalizers:string[]
OwnerReference: 1=kind 3=name 4=uid 5=apiVersion 6=controller:bool 7=blockOwnerDeletion:bool
LabelSelector: 1=matchLabels:map:string 2=matchExpressions:LabelSelectorRequirement[]
PodTemplateSpec: 1=metadata:ObjectMeta 2=spec:PodSpec
DeploymentStrategy: 1=type 2=rollingUpdate:RollingUpdateDeployment
LabelSelectorRequirement: 1=key 2=operator 3=values:string[]
PodSpec: 1=volumes:Volume[] 2=containers:Container[] 3=restartPolicy 4=terminationGracePeriodSeconds:int
  5=activeDeadlineSeconds:int 6=dnsPolicy 7=nodeSelector:map:string 8=serviceAccountName
  9=serviceAccount 10=nodeName 11=hostNetwork:bool 12=hostPID:bool 13=hostIPC:bool
  14=securityContext:PodSecurityContext 15=imagePullSecrets:LocalObjectReference[] 16=hostname
  17=subdomain 18=affinity:Affinity 19=schedulerName 20=initContainers:Container[]
  21=automountServiceAccountToken:bool 22=tolerations:Toleration[] 23=hostAliases:HostAlias[]
  24=priorityClassName 25=priority:int 26=dnsConfig:PodDNSConfig 27=shareProcessNamespace:bool
  28=readinessGates:PodReadinessGate[] 29=runtimeClassName 30=enableServiceLinks:bool
  31=preemptionPolicy 32=overhead:map:Quantity 33=topologySpreadConstraints:TopologySpreadConstraint[]
  35=setHostnameAsFQDN:bool 36=os:PodOS 37=hostUsers:bool 40=resources:ResourceRequirements
  41=hostnameOverride
RollingUpdateDeployment: 1=maxUnavailable:IntOrString 2=maxSurge:IntOrString
Volume: 1=name 2=volumeSource:VolumeSource!
Container: 1=name 2=image 3=command:string[] 4=args:string[] 5=workingDir 6=ports:ContainerPort[]
  7=env:EnvVar[] 8=resources:ResourceRequirements 9=volumeMounts:VolumeMount[] 10=livenessProbe:Probe
  11=readinessProbe:Probe 12=lifecycle:Lifecycle 13=terminationMessagePath 14=imagePullPolicy
  15=securityContext:SecurityContext 16=stdin:bool 17=stdinOnce:bool 18=tty:bool
  19=envFrom:EnvFromSource[] 20=terminationMessagePolicy 22=startupProbe:Probe 24=restartPolicy
PodSecurityContext: 1=seLinuxOptions:SELinuxOptions 2=runAsUser:int 3=runAsNonRoot:bool
  4=supplementalGroups:int[] 5=fsGroup:int 6=runAsGroup:int 7=sysctls:Sysctl[] 9=fsGroupChangePolicy
  10=seccompProfile:SeccompProfile 11=appArmorProfile:AppArmorProfile 12=supplementalGroupsPolicy
  13=seLinuxChangePolicy
LocalObjectReference: 1=name
Affinity: 1=nodeAffinity:NodeAffinity 2=podAffinity:PodAffinity 3=podAntiAffinity:PodAntiAffinity
Toleration: 1=key 2=operator 3=value 4=effect 5=tolerationSeconds:int
HostAlias: 1=ip 2=hostnames:string[]
PodDNSConfig: 1=nameservers:string[] 2=searches:string[] 3=options:PodDNSConfigOption[]
PodReadinessGate: 1=conditionType
TopologySpreadConstraint: 1=maxSkew:int 2=topologyKey 3=whenUnsatisfiable 4=labelSelector:LabelSelector
  5=minDomains:int 6=nodeAffinityPolicy 7=nodeTaintsPolicy 8=matchLabelKeys:string[]
PodOS: 1=name
ResourceRequirements: 1=limits:map:Quantity 2=requests:map:Quantity
VolumeSource: 1=hostPath:HostPathVolumeSource 2=emptyDir:EmptyDirVolumeSource
  6=secret:SecretVolumeSource 10=persistentVolumeClaim:PersistentVolumeClaimVolumeSource
  16=downwardAPI:DownwardAPIVolumeSource 19=configMap:ConfigMapVolumeSource
  26=projected:ProjectedVolumeSource
ContainerPort: 1=name 2=hostPort:int 3=containerPort:int 4=protocol 5=hostIP
EnvFromSource: 1=prefix 2=configMapRef:ConfigMapEnvSource 3=secretRef:SecretEnvSource
EnvVar: 1=name 2=value 3=valueFrom:EnvVarSource
VolumeMount: 1=name 2=readOnly:bool 3=mountPath 4=subPath 5=mountPropagation 6=subPathExpr
  7=recursiveReadOnly
Probe: 1=handler:ProbeHandler! 2=initialDelaySeconds:int 3=timeoutSeconds:int 4=periodSeconds:int
  5=successThreshold:int 6=failureThreshold:int 7=terminationGracePeriodSeconds:int
Lifecycle: 1=postStart:LifecycleHandler 2=preStop:LifecycleHandler 3=stopSignal
SecurityContext: 1=capabilities:Capabilities 2=privileged:bool 3=seLinuxOptions:SELinuxOptions
  4=runAsUser:int 5=runAsNonRoot:bool 6=readOnlyRootFilesystem:bool 7=allowPrivilegeEscalation:bool
  8=runAsGroup:int 9=procMount 11=seccompProfile:SeccompProfile 12=appArmorProfile:AppArmorProfile
SELinuxOptions: 1=user 2=role 3=type 4=level
Sysctl: 1=name 2=value
SeccompProfile: 1=type 2=localhostProfile
AppArmorProfile: 1=type 2=localhostProfile
NodeAffinity: 1=requiredDuringSchedulingIgnoredDuringExecution:NodeSelector
  2=preferredDuringSchedulingIgnoredDuringExecution:PreferredSchedulingTerm[]
PodAffinity: 1=requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm[]
  2=preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm[]
PodAntiAffinity: 1=requiredDuringSchedulingIgnoredDuringExecution:PodAffinityTerm[]
  2=preferredDuringSchedulingIgnoredDuringExecution:WeightedPodAffinityTerm[]
PodDNSConfigOption: 1=name 2=value
HostPathVolumeSource: 1=path 2=type
EmptyDirVolumeSource: 1=medium 2=sizeLimit:Quantity 3=mode:int
SecretVolumeSource: 1=secretName 2=items:KeyToPath[] 3=defaultMode:int 4=optional:bool 5=defaultUser:int
PersistentVolumeClaimVolumeSource: 1=claimName 2=readOnly:bool
DownwardAPIVolumeSource: 1=items:DownwardAPIVolumeFile[] 2=defaultMode:int 3=defaultUser:int
ConfigMapVolumeSource: 1=localObjectReference:LocalObjectReference! 2=items:KeyToPath[]
  3=defaultMode:int 4=optional:bool 5=defaultUser:int
ProjectedVolumeSource: 1=sources:VolumeProjection[] 2=defaultMode:int 3=defaultUser:int
ConfigMapEnvSource: 1=localObjectReference:LocalObjectReference! 2=optional:bool
SecretEnvSource: 1=localObjectReference:LocalObjectReference! 2=optional:bool
EnvVarSource: 1=fieldRef:ObjectFieldSelector 2=resourceFieldRef:ResourceFieldSelector
  3=configMapKeyRef:ConfigMapKeySelector 4=secretKeyRef:SecretKeySelector
ProbeHandler: 1=exec:ExecAction 2=httpGet:HTTPGetAction 3=tcpSocket:TCPSocketAction 4=grpc:GRPCAction
LifecycleHandler: 1=exec:ExecAction 2=httpGet:HTTPGetAction 3=tcpSocket:TCPSocketAction
Capabilities: 1=add:string[] 2=drop:string[]
NodeSelector: 1=nodeSelectorTerms:NodeSelectorTerm[]
PreferredSchedulingTerm: 1=weight:int 2=preference:NodeSelectorTerm
PodAffinityTerm: 1=labelSelector:LabelSelector 2=namespaces:string[] 3=topologyKey
  4=namespaceSelector:LabelSelector 5=matchLabelKeys:string[] 6=mismatchLabelKeys:string[]
WeightedPodAffinityTerm: 1=weight:int 2=podAffinityTerm:PodAffinityTerm
KeyToPath: 1=key 2=path 3=mode:int 4=user:int
DownwardAPIVolumeFile: 1=path 2=fieldRef:ObjectFieldSelector 3=resourceFieldRef:ResourceFieldSelector
  4=mode:int 5=user:int
VolumeProjection: 1=secret:SecretProjection 2=downwardAPI:DownwardAPIProjection
  3=configMap:ConfigMapProjection 4=serviceAccountToken:ServiceAccountTokenProjection
ObjectFieldSelector: 1=apiVersion 2=fieldPath
ResourceFieldSelector: 1=containerName 2=resource 3=divisor:Quantity
ConfigMapKeySelector: 1=localObjectReference:LocalObjectReference! 2=key 3=optional:bool
SecretKeySelector: 1=localObjectReference:LocalObjectReference! 2=key 3=optional:bool
ExecAction: 1=command:string[]
HTTPGetAction: 1=path 2=port:IntOrString 3=host 4=scheme 5=httpHeaders:HTTPHeader[] 6=protocol
TCPSocketAction: 1=port:IntOrString 2=host
GRPCAction: 1=port:int 2=service 3=mode
NodeSelectorTerm: 1=matchExpressions:NodeSelectorRequirement[] 2=matchFields:NodeSelectorRequirement[]
SecretProjection: 1=localObjectReference:LocalObjectReference! 2=items:KeyToPath[] 4=optional:bool
DownwardAPIProjection: 1=items:DownwardAPIVolumeFile[]
ConfigMapProjection: 1=localObjectReference:LocalObjectReference! 2=items:KeyToPath[] 4=optional:bool
ServiceAccountTokenProjection: 1=audience 2=expirationSeconds:int 3=path 4=user:int
HTTPHeader: 1=name 2=value
NodeSelectorRequirement: 1=key 2=operator 3=values:string[]
"""
