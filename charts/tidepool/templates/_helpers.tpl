{{/* Prefix of all names; 44 characters, so that what is added still fits a label's 63. */}}
{{- define "tidepool.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 44 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 44 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 44 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What never changes of a component's labels. Call with (list $ "gateway"). */}}
{{- define "tidepool.selector" -}}
{{- $root := first . -}}
app.kubernetes.io/name: {{ default $root.Chart.Name $root.Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
tidepool.dev/component: {{ last . }}
{{- end -}}

{{- define "tidepool.labels" -}}
{{- $root := first . -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" | trunc 63 }}
{{ include "tidepool.selector" . }}
app.kubernetes.io/component: {{ last . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tidepool
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- end -}}

{{/* Call with (list $ "gateway"). */}}
{{- define "tidepool.serviceAccountName" -}}
{{- $root := first . -}}
{{- $account := (index $root.Values (last .)).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "tidepool.fullname" $root) (last .)) $account.name -}}
{{- else -}}
{{- default "default" $account.name -}}
{{- end -}}
{{- end -}}

{{/* Call with (list $ .Values.router.image). */}}
{{- define "tidepool.image" -}}
{{- $root := first . -}}
{{- $image := last . -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}

{{/* Where pods go. Call with (list $ "gateway"). */}}
{{- define "tidepool.placement" -}}
{{- $root := first . -}}
{{- $component := index $root.Values (last .) -}}
{{- with $component.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tidepool.selector" . | nindent 8 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Name and namespace of the pod, as both programs read them. */}}
{{- define "tidepool.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end -}}

{{/* Scheme of the gateway's address: https with a certificate. */}}
{{- define "tidepool.scheme" -}}
{{- if .Values.gateway.tls.secretName }}https{{ else }}http{{ end }}
{{- end }}

{{/* Our own proof for sidecars: a token that the kubelet renews, and the API server itself refuses. */}}
{{- define "tidepool.proofMount" -}}
{{- if .Values.trust.enabled -}}
- {name: proof, mountPath: /var/run/secrets/tidepool.dev/proof, readOnly: true}
{{- end -}}
{{- end }}

{{- define "tidepool.proofVolume" -}}
{{- if .Values.trust.enabled -}}
- name: proof
  projected:
    sources:
      - serviceAccountToken: {audience: tidepool, expirationSeconds: 3600, path: token}
{{- end -}}
{{- end }}

{{/* Secret with the authorities of the sidecars' certificates; empty where there is none. */}}
{{- define "tidepool.podCA" -}}
{{- .Values.gateway.podTLS.caSecretName | default .Values.router.tls.secretName -}}
{{- end }}
