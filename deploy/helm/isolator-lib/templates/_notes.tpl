{{- define "isolator.notes" -}}
{{- $namespace := include "isolator.namespace" . -}}
{{- $fullname := include "isolator.fullname" . -}}
kai-resource-isolator {{ .Chart.AppVersion }} is installed in namespace {{ $namespace }}:
{{- with .Values.webhook }}{{ if .enabled }}
  webhook   Deployment {{ include "isolator.workload" (dict "root" $ "part" "webhook") }}; sharing pods are {{ ternary "refused" "admitted without their limit" (eq .failurePolicy "Fail") }} while it is down
            certificate: {{ get (dict "managed" "made and renewed by the webhook" "certManager" "from cert-manager" "existing" "the Secret of tls.existingSecret") (include "isolator.certificateFrom" $) }}
{{- end }}{{ end }}
{{- with .Values.vramd }}{{ if .enabled }}
  vramd     Deployment {{ include "isolator.workload" (dict "root" $ "part" "vramd") }}
{{- end }}{{ end }}
{{- if eq (include "isolator.libraryFrom" .) "image" }}
  library   image {{ include "isolator.image" (dict "root" . "part" "library") }}, which the kubelet pulls for each sharing pod
{{- end }}
{{- with .Values.librarySync }}{{ if include "isolator.libsyncNeeded" $ }}
  libsync   DaemonSet {{ include "isolator.workload" (dict "root" $ "part" "libsync") }}; {{ ternary "the library lies" "regions lie" (eq (include "isolator.libraryFrom" $) "hostPath") }} in {{ $.Values.paths.hostDir }} on each node
{{- end }}{{ end }}
{{- if and (.Values.cleaner | default dict).enabled (include "isolator.regionsOnNode" .) }}
  cleaner   DaemonSet {{ include "isolator.workload" (dict "root" $ "part" "cleaner") }}; removes regions of pods that are gone
{{- end }}
{{- with .Values.monitor }}{{ if .enabled }}
  monitor   DaemonSet {{ include "isolator.workload" (dict "root" $ "part" "monitor") }}; metrics at Service {{ $fullname }}-monitor, port {{ .service.port }}
{{- end }}{{ end }}
{{- if .Values.policies }}
{{- if not .Values.policies.enabled }}

policies.enabled is false: tenants may change the limits of their running pods.
{{- else if not (include "isolator.policiesPossible" .) }}

Kubernetes {{ .Capabilities.KubeVersion.Version }} has no ValidatingAdmissionPolicies (1.30 and later have): they are left out, and tenants may
change the limits of their running pods.
{{- end }}
{{- end }}
{{- $wanted := list }}
{{- with .Values.metrics }}{{ if .podMonitor.enabled }}{{ $wanted = append $wanted "metrics.podMonitor.enabled" }}{{ end }}{{ end }}
{{- with .Values.monitor }}{{ if .prometheusRule.enabled }}{{ $wanted = append $wanted "monitor.prometheusRule.enabled" }}{{ end }}{{ end }}
{{- with .Values.monitor }}{{ if and .enabled .serviceMonitor.enabled }}{{ $wanted = append $wanted "monitor.serviceMonitor.enabled" }}{{ end }}{{ end }}
{{- if and $wanted (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}

The cluster does not know monitoring.coreos.com/v1 (Prometheus Operator): {{ join " and " $wanted }} had no effect.
{{- end }}
{{- $agents := list }}
{{- with .Values.librarySync }}{{ if include "isolator.libsyncNeeded" $ }}{{ $agents = append $agents "libsync" }}{{ end }}{{ end }}
{{- if and (.Values.cleaner | default dict).enabled (include "isolator.regionsOnNode" .) }}{{ $agents = append $agents "cleaner" }}{{ end }}
{{- with .Values.monitor }}{{ if .enabled }}{{ $agents = append $agents "monitor" }}{{ end }}{{ end }}
{{- if $agents }}

Mounting directories of the node: {{ join ", " $agents }}. Where Pod Security is enforced:
  kubectl label namespace {{ $namespace }} pod-security.kubernetes.io/enforce=privileged
{{- end }}
{{- if (.Values.webhook | default dict).enabled }}

Check it:
  helm test {{ .Release.Name }} --namespace {{ $namespace }}
{{- end }}
{{- end -}}
