{{/* Alert rules and dashboard, as services/monitor has and tests them. They are about every service, so they do not end
with the monitor. */}}

{{- define "isolator.monitoring" -}}
{{- $name := include "isolator.fullname" . -}}
{{- $known := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- with .Values.monitor.prometheusRule }}
{{- if and .enabled $known }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  {{- include "isolator.metadata" (dict "root" $ "part" "monitor" "name" $name "labels" .labels) | nindent 2 }}
spec:
  {{- $.Files.Get "files/rules.yaml" | nindent 2 }}
{{- end }}
{{- end }}
{{- with .Values.monitor.dashboard }}
{{- if .enabled }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  {{- include "isolator.metadata" (dict "root" $ "part" "monitor" "name" (printf "%s-dashboard" $name) "labels" .labels "annotations" .annotations) | nindent 2 }}
data:
  kai-resource-isolator.json: |
    {{- $.Files.Get "files/dashboard.json" | nindent 4 }}
{{- end }}
{{- end }}
{{- end -}}
