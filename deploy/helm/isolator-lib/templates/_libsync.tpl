{{/* libsync. Context: a root context. */}}

{{- define "isolator.libsync" -}}
{{- $part := dict "root" . "part" "libsync" -}}
{{- $values := .Values.librarySync -}}
{{- $name := include "isolator.workload" $part -}}
{{ include "isolator.serviceAccountObject" $part }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name) $part) | nindent 2 }}
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
        - name: libsync
          # Files on the node belong to root, so that no pod that is not root can change them.
          {{- include "isolator.containerCommon" (merge (dict "security" (dict "runAsUser" 0 "runAsGroup" 0)) $part) | nindent 10 }}
          args:
            - run
            - --log-level={{ .Values.logLevel }}
            - --host-dir={{ .Values.paths.hostDir }}
            - --container-dir={{ .Values.paths.containerVgpuMount }}
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          {{- with $values.extraEnv }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - {name: host, mountPath: {{ .Values.paths.hostDir }}}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: host
          hostPath: {path: {{ .Values.paths.hostDir }}, type: DirectoryOrCreate}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
