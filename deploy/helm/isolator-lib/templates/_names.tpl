{{/* Names, labels and images. The context is a root context, or a dict with `root` and `part` (webhook, vramd, monitor, libsync, cleaner). */}}

{{- define "isolator.name" -}}
{{- .Values.nameOverride | default "kai-resource-isolator" | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* As the upstream chart makes it, so that an upgrade meets the same objects. Cut so that every suffix fits. */}}
{{- define "isolator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "isolator.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "isolator.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end -}}

{{/* The values of a part; the library, an image that pods mount, is one of those that have an image. */}}
{{- define "isolator.partKey" -}}
{{- get (dict "libsync" "librarySync" "library" "volumes") .part | default .part -}}
{{- end -}}

{{/* Workloads have names of their own: upstream's selectors cannot be changed by an upgrade. */}}
{{- define "isolator.workload" -}}
{{- $suffixes := dict "webhook" "webhook-server" "vramd" "vramd" "monitor" "monitor-agent" "libsync" "libsync-agent" "cleaner" "cleaner" -}}
{{- printf "%s-%s" (include "isolator.fullname" .root) (get $suffixes .part) -}}
{{- end -}}

{{- define "isolator.serviceAccount" -}}
{{- $values := get .root.Values (include "isolator.partKey" .) -}}
{{- $values.serviceAccount.name | default (ternary (printf "%s-%s" (include "isolator.fullname" .root) .part) "default" $values.serviceAccount.create) -}}
{{- end -}}

{{- define "isolator.selector" -}}
app.kubernetes.io/name: {{ include "isolator.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- define "isolator.labels" -}}
{{ include "isolator.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: kai-resource-isolator
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of a namespaced object: dict root, part, name, and optional annotations and labels. */}}
{{- define "isolator.metadata" -}}
name: {{ .name }}
{{- if not .cluster }}
namespace: {{ include "isolator.namespace" .root }}
{{- end }}
labels:
  {{- include "isolator.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) (.root.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "isolator.image" -}}
{{- $common := .root.Values.image -}}
{{- $own := (get .root.Values (include "isolator.partKey" .)).image -}}
{{- $global := (.root.Values.global | default dict).imageRegistry -}}
{{- $registry := $global | default $own.registry | default $common.registry -}}
{{- /* The cleaner is a program of the monitor's image. */}}
{{- $repository := $own.repository | default (printf "%s-%s" $common.repository (ternary "monitor" .part (eq .part "cleaner"))) -}}
{{- $tag := $own.tag | default $common.tag | default .root.Chart.AppVersion -}}
{{- with $registry }}{{ . | trimSuffix "/" }}/{{ end }}{{ $repository }}
{{- if $own.digest }}@{{ $own.digest }}{{ else }}:{{ $tag | toString }}{{ end -}}
{{- end -}}

{{- define "isolator.pullPolicy" -}}
{{- (get .root.Values (include "isolator.partKey" .)).image.pullPolicy | default .root.Values.image.pullPolicy -}}
{{- end -}}

{{/* "true" where each container's region is its own directory of the node. */}}
{{- define "isolator.regionsOnNode" -}}
{{- if eq ((.Values.volumes | default dict).region | default "emptyDir") "hostPath" -}}true{{- end -}}
{{- end -}}
