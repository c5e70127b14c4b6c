{{/* The prefix of all names: the name of the release. */}}
{{- define "k8s-1m.name" -}}{{ .Release.Name | trunc 30 | trimSuffix "-" }}{{- end }}

{{/* Labels of an object. Call with (list $ COMPONENT). */}}
{{- define "k8s-1m.labels" -}}
{{- $ := index . 0 -}}
helm.sh/chart: {{ $.Chart.Name }}-{{ $.Chart.Version }}
app.kubernetes.io/managed-by: {{ $.Release.Service }}
app.kubernetes.io/version: {{ $.Chart.AppVersion | quote }}
{{ include "k8s-1m.selector" . }}
{{- end }}

{{/* Labels that select the pods of a component. Call with (list $ COMPONENT). */}}
{{- define "k8s-1m.selector" -}}
{{- $ := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $.Release.Name }}
{{- end }}

{{/* Image of a program. Call with (list $ PROGRAM). */}}
{{- define "k8s-1m.image" -}}
{{- $ := index . 0 -}}
{{ with $.Values.image.registry }}{{ . }}/{{ end }}{{ index . 1 }}:{{ $.Values.image.tag | default $.Chart.AppVersion }}
{{- end }}

{{/* What all pods have in common. Call with (list $ COMPONENT VALUES). */}}
{{- define "k8s-1m.pod" -}}
{{- $ := index . 0 -}}
{{- $component := index . 1 -}}
{{- $values := index . 2 -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with $.Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
affinity:
{{- if $values.affinity }}
  {{- toYaml $values.affinity | nindent 2 }}
{{- else }}
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{ include "k8s-1m.selector" (list $ $component) | nindent 12 }}
{{- end }}
{{- end }}

{{/* What all containers have in common. Call with (list $ PROGRAM VALUES). */}}
{{- define "k8s-1m.container" -}}
{{- $ := index . 0 -}}
{{- $program := index . 1 -}}
{{- $values := index . 2 -}}
image: {{ include "k8s-1m.image" (list $ $program) }}
imagePullPolicy: {{ $.Values.image.pullPolicy }}
command: [{{ $program }}]
env:
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{ toYaml $values.resources | nindent 2 }}
{{- end }}

{{/* Probes of a container. Call with (list PORT SCHEME LIVE READY). A start may take ten minutes: a large store is read from its disk. */}}
{{- define "k8s-1m.probes" -}}
{{- $port := index . 0 -}}
{{- $scheme := index . 1 -}}
startupProbe:
  httpGet: {path: {{ index . 3 }}, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: {path: {{ index . 2 }}, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 10
  timeoutSeconds: 15
  failureThreshold: 8
readinessProbe:
  httpGet: {path: {{ index . 3 }}, port: {{ $port }}, scheme: {{ $scheme }}}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* A PodDisruptionBudget that lets one pod be evicted at a time. Call with (list $ COMPONENT). */}}
{{- define "k8s-1m.disruptionBudget" -}}
{{- $ := index . 0 -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "k8s-1m.name" $ }}-{{ index . 1 }}
  namespace: {{ $.Release.Namespace }}
  labels: {{ include "k8s-1m.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{ include "k8s-1m.selector" . | nindent 6 }}
{{- end }}

{{/* Names under which a Service of this release is reached. Call with (list $ SERVICE). */}}
{{- define "k8s-1m.serviceNames" -}}
{{- $ := index . 0 -}}
{{- $service := printf "%s.%s" (index . 1) $.Release.Namespace -}}
{{ toJson (list (index . 1) $service (printf "%s.svc" $service) (printf "%s.svc.%s" $service $.Values.clusterDomain)) }}
{{- end }}

{{/* URL of the store for clients: that of the chart, or the one of the values. */}}
{{- define "k8s-1m.storeURL" -}}
{{- if .Values.memEtcd.enabled -}}
https://{{ include "k8s-1m.name" . }}-mem-etcd.{{ .Release.Namespace }}.svc:2379
{{- end -}}
{{- end }}

{{/* Name of a member of the store. Call with (list $ NUMBER). */}}
{{- define "k8s-1m.member" -}}{{ include "k8s-1m.name" (index . 0) }}-mem-etcd-{{ index . 1 }}{{- end }}

{{/* Host of a member of the store, for the other members. Call with (list $ NUMBER). */}}
{{- define "k8s-1m.memberHost" -}}
{{- $ := index . 0 -}}
{{ include "k8s-1m.member" . }}.{{ include "k8s-1m.name" $ }}-mem-etcd-members.{{ $.Release.Namespace }}.svc
{{- end }}

{{/* The value of --initial-cluster. */}}
{{- define "k8s-1m.initialCluster" -}}
{{- $members := list -}}
{{- range $i := until (int .Values.memEtcd.members) -}}
{{- $members = append $members (printf "%s=https://%s:2380" (include "k8s-1m.member" (list $ $i)) (include "k8s-1m.memberHost" (list $ $i))) -}}
{{- end -}}
{{- join "," $members -}}
{{- end }}
