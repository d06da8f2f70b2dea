{{/* Without such a quota GKE admits no pods of system-* priority classes outside kube-system. */}}
{{- define "isolator.priorityQuota" -}}
{{- if .Values.priorityQuota.create }}
---
apiVersion: v1
kind: ResourceQuota
metadata:
  {{- include "isolator.metadata" (dict "root" . "part" "quota" "name" (printf "%s-priority" (include "isolator.fullname" .))) | nindent 2 }}
spec:
  hard: {pods: "1000000"}
  scopeSelector:
    matchExpressions:
      - {scopeName: PriorityClass, operator: In, values: [system-node-critical, system-cluster-critical]}
{{- end }}
{{- end -}}
