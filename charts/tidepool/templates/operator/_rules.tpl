{{/* In every namespace that is looked after. No Secret, no exec, no Role: what pods need, users refer to. */}}
{{- define "tidepool.poolRules" -}}
- apiGroups: [tidepool.dev]
  resources: [modelpools, agentworkflows]
  verbs: [get, list, watch]
# delete: run objects whose time to live is over.
- apiGroups: [tidepool.dev]
  resources: [agentworkflowruns]
  verbs: [get, list, watch, delete]
- apiGroups: [tidepool.dev]
  resources: [modelpools/status, agentworkflows/status, agentworkflowruns/status, modelpools/scale]
  verbs: [patch]
# Owner references that block deletion need this where OwnerReferencesPermissionEnforcement is on (OpenShift).
- apiGroups: [tidepool.dev]
  resources: [modelpools/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [patch]
# Replicas on several nodes, where the cluster has LeaderWorkerSets.
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets/scale]
  verbs: [patch]
# Jobs that load models into caches.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
# What every pool has until it goes; the garbage collector takes it away.
- apiGroups: [""]
  resources: [serviceaccounts, configmaps, services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch, create, patch, delete]
# EndpointSlices with addresses need this where the endpoint controllers restrict them (OpenShift).
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices/restricted]
  verbs: [create]
# patch: the mark on the pod that may go first.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
# The annotation by which an administrator lets a namespace's workflows call hosts.
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
# What the kubelet says about a pod in trouble: volumes, images, probes.
- apiGroups: [""]
  resources: [events]
  verbs: [list]
{{- if .Values.operator.readLogs }}
# The end of the engine's log of a pod in trouble; without it only the last 2 KiB are known.
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
{{- end }}
{{- end -}}

{{/* Where pools find room: the nodes, what the pods of the whole cluster hold of them, and what bounds pools. */}}
{{- define "tidepool.nodeRules" -}}
- apiGroups: [""]
  resources: [nodes, pods, resourcequotas]
  verbs: [list]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [list]
{{- end -}}

{{/* In the operator's own namespace: leadership, the gateways' pods, and the fleet that they mount. */}}
{{- define "tidepool.homeRules" -}}
# create knows no names: the request has none yet when it is judged.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [tidepool-operator]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps]
  resourceNames: [tidepool-fleet]
  verbs: [get, patch]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
{{- end -}}
