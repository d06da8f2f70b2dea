{{/* What every pod and container of the chart has in common. Context: dict root, part. */}}

{{- define "isolator.podMetadata" -}}
{{- $values := get .root.Values (include "isolator.partKey" .) -}}
labels:
  {{- include "isolator.labels" . | nindent 2 }}
  {{- with $values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) ($values.podAnnotations | default dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "isolator.podSpec" -}}
{{- $values := get .root.Values (include "isolator.partKey" .) -}}
serviceAccountName: {{ include "isolator.serviceAccount" . }}
automountServiceAccountToken: {{ .token | default false }}
# A Service named like a program would put variables among its settings.
enableServiceLinks: false
{{- with (.root.Values.global | default dict).imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {{ if kindIs "string" . }}{{ dict "name" . | toJson }}{{ else }}{{ toJson . }}{{ end }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml (mergeOverwrite (dict "seccompProfile" (dict "type" "RuntimeDefault")) (.podSecurity | default dict) ($values.podSecurityContext | default dict)) | nindent 2 }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The spread of a Deployment's replicas. */}}
{{- define "isolator.spread" -}}
{{- $values := get .root.Values (include "isolator.partKey" .) -}}
topologySpreadConstraints:
{{- if $values.topologySpreadConstraints }}
  {{- toYaml $values.topologySpreadConstraints | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "isolator.selector" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Context of a container that needs no right at all: dict root, part, and optional `security` over the strict default. */}}
{{- define "isolator.containerCommon" -}}
{{- $values := get .root.Values (include "isolator.partKey" .) -}}
image: {{ include "isolator.image" . | quote }}
imagePullPolicy: {{ include "isolator.pullPolicy" . }}
securityContext:
  {{- $strict := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
  {{- $context := mergeOverwrite $strict (.security | default dict) ($values.securityContext | default dict) }}
  {{- /* The API refuses a privileged container that may not gain privileges. */}}
  {{- if $context.privileged }}{{ $_ := unset $context "allowPrivilegeEscalation" }}{{ end }}
  {{- toYaml $context | nindent 2 }}
{{- with $values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A Go duration such as 1m30s, 5s or 500ms in seconds: dict path, value. */}}
{{- define "isolator.seconds" -}}
{{- $text := toString .value -}}
{{- if not (regexMatch "^([0-9]+(\\.[0-9]+)?(h|m|s|ms))+$" $text) -}}
{{- fail (printf "%s is %q: accepted is a time such as 5s, 500ms or 1m30s" .path $text) -}}
{{- end -}}
{{- $total := 0.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?(h|ms|m|s)" $text -1 -}}
{{- $unit := regexFind "[a-z]+$" . -}}
{{- $total = addf $total (mulf (trimSuffix $unit . | float64) (get (dict "h" 3600 "m" 60 "s" 1 "ms" 0.001) $unit)) -}}
{{- end -}}
{{- $total -}}
{{- end -}}

{{- define "isolator.nonRoot" -}}
{{- dict "runAsNonRoot" true "runAsUser" 65532 "runAsGroup" 65532 | toJson -}}
{{- end -}}

{{/* metadata and spec.replicas part of a Deployment. */}}
{{- define "isolator.replicas" -}}
{{- $values := get .root.Values (include "isolator.partKey" .) -}}
{{- if not $values.autoscaling.enabled }}
replicas: {{ $values.replicaCount }}
{{- end }}
revisionHistoryLimit: 3
{{- /* In the node's network a new pod may have to wait for the port of an old one. */}}
strategy:
  type: RollingUpdate
  rollingUpdate: {maxUnavailable: {{ ternary 1 0 (default false $values.hostNetwork) }}, maxSurge: 1}
selector:
  matchLabels:
    {{- include "isolator.selector" . | nindent 4 }}
{{- end -}}

{{- define "isolator.serviceAccountObject" -}}
{{- $values := get .root.Values (include "isolator.partKey" .) -}}
{{- if $values.serviceAccount.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (include "isolator.serviceAccount" .) "annotations" $values.serviceAccount.annotations) .) | nindent 2 }}
automountServiceAccountToken: false
{{- end }}
{{- end -}}

{{/* PodDisruptionBudget and HorizontalPodAutoscaler of a Deployment. */}}
{{- define "isolator.availability" -}}
{{- $key := include "isolator.partKey" . -}}
{{- $values := get .root.Values $key -}}
{{- $least := ternary $values.autoscaling.minReplicas $values.replicaCount $values.autoscaling.enabled | int -}}
{{- if gt $least 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (include "isolator.workload" .)) .) | nindent 2 }}
spec:
  {{- include "isolator.budget" (dict "key" $key "budget" ($values.podDisruptionBudget | default dict)) | nindent 2 }}
  selector:
    matchLabels:
      {{- include "isolator.selector" . | nindent 6 }}
{{- end }}
{{- if $values.autoscaling.enabled }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (include "isolator.workload" .)) .) | nindent 2 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "isolator.workload" . }}}
  minReplicas: {{ $values.autoscaling.minReplicas }}
  maxReplicas: {{ $values.autoscaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ $values.autoscaling.targetCPUUtilizationPercentage }}}
{{- end }}
{{- end -}}

{{/* Exactly one of minAvailable and maxUnavailable: an integer from 0 to 2147483647 or 0% to 100%. */}}
{{- define "isolator.budget" -}}
{{- $given := dict -}}
{{- range $name := list "minAvailable" "maxUnavailable" -}}
{{- $value := get $.budget $name -}}
{{- if not (or (kindIs "invalid" $value) (eq (toString $value) "")) -}}
{{- /* Numbers arrive as floats; a large one would be printed with an exponent. */ -}}
{{- $text := ternary (printf "%.0f" (toString $value | float64)) (toString $value) (kindIs "float64" $value) -}}
{{- if not (or (regexMatch "^(100|[0-9]{1,2})%$" $text) (and (regexMatch "^[0-9]{1,10}$" $text) (le (int64 $text) 2147483647))) -}}
{{- fail (printf "%s.podDisruptionBudget.%s is %q: accepted are an integer from 0 to 2147483647 and 0%% to 100%%" $.key $name $text) -}}
{{- end -}}
{{- $_ := set $given $name $text -}}
{{- end -}}
{{- end -}}
{{- range $name, $_ := $.budget -}}
{{- if not (has $name (list "minAvailable" "maxUnavailable" "unhealthyPodEvictionPolicy")) -}}
{{- fail (printf "%s.podDisruptionBudget.%s is not a key: accepted are minAvailable, maxUnavailable and unhealthyPodEvictionPolicy" $.key $name) -}}
{{- end -}}
{{- end -}}
{{- if eq (len $given) 0 }}
minAvailable: 1
{{- else }}
{{- /* The chart's own default gives way to a maxUnavailable. */ -}}
{{- if hasKey $given "maxUnavailable" }}
maxUnavailable: {{ $given.maxUnavailable }}
{{- else }}
minAvailable: {{ $given.minAvailable }}
{{- end }}
{{- end }}
{{- with .budget.unhealthyPodEvictionPolicy }}
unhealthyPodEvictionPolicy: {{ . }}
{{- end }}
{{- end -}}
