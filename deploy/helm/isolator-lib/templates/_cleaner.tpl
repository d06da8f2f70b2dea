{{/*
The cleaner removes what ended pods left in the node's directory of regions. It is a pod of its own, since it is the one
that may write there whoever a file belongs to: no API token, no port. Context: a root context.
*/}}

{{- define "isolator.cleaner" -}}
{{- $part := dict "root" . "part" "cleaner" -}}
{{- $values := .Values.cleaner -}}
{{ include "isolator.serviceAccountObject" $part }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (include "isolator.workload" $part)) $part) | nindent 2 }}
spec:
  revisionHistoryLimit: 3
  {{- with $values.updateStrategy }}
  updateStrategy:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "isolator.selector" $part | nindent 6 }}
  template:
    metadata:
      {{- include "isolator.podMetadata" $part | nindent 6 }}
    spec:
      {{- include "isolator.podSpec" $part | nindent 6 }}
      containers:
        - name: cleaner
          {{- include "isolator.containerCommon" (merge (dict "security" (include "isolator.cleanerSecurity" . | fromJson)) $part) | nindent 10 }}
          args:
            - clean
            - --log-level={{ .Values.logLevel }}
            - --region-root=/regions
            - --kubelet-root=/kubelet
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          {{- with $values.extraEnv }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - {name: regions, mountPath: /regions}
            # Following the node, or it would hold every volume that is mounted there.
            - {name: pods, mountPath: /kubelet/pods, readOnly: true, mountPropagation: HostToContainer}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        # Made by libsync, in the mode that lets containers write their own part of it.
        - name: regions
          hostPath: {path: {{ .Values.paths.hostDir }}/containers, type: Directory}
        # Only whether a pod is still there is looked at.
        - name: pods
          hostPath: {path: {{ .Values.paths.kubeletRoot }}/pods, type: Directory}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{ include "isolator.metricsPolicy" (merge (dict "closed" true) $part) }}
{{- end -}}

{{/* root opens what other users closed, and removes from a sticky directory what is not its own. */}}
{{- define "isolator.cleanerSecurity" -}}
{{- dict "runAsUser" 0 "runAsGroup" 0 "capabilities" (dict "drop" (list "ALL") "add" (list "DAC_OVERRIDE" "FOWNER")) | toJson -}}
{{- end -}}
