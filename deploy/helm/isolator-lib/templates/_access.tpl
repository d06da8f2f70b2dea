{{/* Roles, network policies and scrape objects that several services have alike. Context: dict root, part. */}}

{{/* A ClusterRole and its binding to the part's service account; `rules` is YAML. */}}
{{- define "isolator.clusterRole" -}}
{{- $name := printf "%s-%s" (include "isolator.workload" .) (include "isolator.namespace" .root) -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" .part "name" $name "cluster" true) | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" .part "name" $name "cluster" true) | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ include "isolator.serviceAccount" . }}, namespace: {{ include "isolator.namespace" .root }}}
{{- end -}}

{{/* A Role in the release's namespace and its binding; `rules` is YAML. */}}
{{- define "isolator.role" -}}
{{- $name := include "isolator.workload" . -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" .part "name" $name) | nindent 2 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" .part "name" $name) | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ include "isolator.serviceAccount" . }}, namespace: {{ include "isolator.namespace" .root }}}
{{- end -}}

{{/* Connections to the port named metrics, and to those in `ports` (YAML of ingress rules); with `closed`, none. */}}
{{- define "isolator.metricsPolicy" -}}
{{- if .root.Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" .part "name" (include "isolator.workload" .)) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "isolator.selector" . | nindent 6 }}
  policyTypes: [Ingress]
  {{- if .closed }}
  ingress: []
  {{- else }}
  ingress:
    - ports: [{port: metrics, protocol: TCP}]
    {{- with .ports }}
    {{- . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "isolator.podMonitor" -}}
{{- $values := .root.Values.metrics.podMonitor -}}
{{- if and $values.enabled (.root.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}
---
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" .part "name" (include "isolator.workload" .) "labels" $values.labels) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "isolator.selector" . | nindent 6 }}
  podMetricsEndpoints:
    - port: metrics
      path: /metrics
      interval: {{ $values.interval }}
      relabelings:
        {{- include "isolator.nodeRelabeling" . | nindent 8 }}
{{- end }}
{{- end -}}

{{/* Alerts name the node: the address of a pod does not tell it. */}}
{{- define "isolator.nodeRelabeling" -}}
- {sourceLabels: [__meta_kubernetes_pod_node_name], targetLabel: node}
{{- end -}}
