{{/* libsync. Context: a root context. */}}

{{- define "isolator.libsync" -}}
{{- $part := dict "root" . "part" "libsync" -}}
{{- $values := .Values.librarySync -}}
{{- $name := include "isolator.workload" $part -}}
{{- $marks := or $values.nodeLabel $values.nodeCondition -}}
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
      {{- include "isolator.podSpec" (merge (dict "token" (not (empty $marks))) $part) | nindent 6 }}
      containers:
        - name: libsync
          # root, since the files on the node belong to root, and without any capability.
          {{- include "isolator.containerCommon" (merge (dict "security" (dict "runAsUser" 0 "runAsGroup" 0)) $part) | nindent 10 }}
          args:
            - run
            - --log-level={{ .Values.logLevel }}
            - {{ printf "--listen-address=%s" .Values.listenAddress | quote }}
            - --listen-port={{ $values.metricsPort }}
            - {{ printf "--host-dir=%s" .Values.paths.hostDir | quote }}
            - {{ printf "--container-dir=%s" .Values.paths.containerVgpuMount | quote }}
            {{- if include "isolator.regionsOnNode" . }}
            - --region-dir
            {{- end }}
            {{- with $values.seLinuxType }}
            - {{ printf "--selinux-type=%s" . | quote }}
            {{- end }}
            {{- if $values.checkNodeLibc }}
            - --host-root=/host
            {{- end }}
            {{- if $marks }}
            - --node-name=$(NODE_NAME)
            {{- end }}
            {{- with $values.nodeLabel }}
            - {{ printf "--node-label=%s" . | quote }}
            {{- end }}
            {{- with $values.nodeCondition }}
            - {{ printf "--node-condition=%s" . | quote }}
            {{- end }}
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: NODE_NAME
              valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - {name: metrics, containerPort: {{ $values.metricsPort }}, protocol: TCP}
          startupProbe:
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /healthz, port: metrics}
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            httpGet: {path: /readyz, port: metrics}
            periodSeconds: 5
            timeoutSeconds: 5
          volumeMounts:
            - {name: host, mountPath: {{ .Values.paths.hostDir }}}
            {{- if $values.checkNodeLibc }}
            - {name: root, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
            {{- end }}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        - name: host
          hostPath: {path: {{ .Values.paths.hostDir }}, type: DirectoryOrCreate}
        {{- if $values.checkNodeLibc }}
        - name: root
          hostPath: {path: /, type: Directory}
        {{- end }}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- if and $marks .Values.rbac.create }}
{{ include "isolator.clusterRole" (merge (dict "rules" (include "isolator.libsyncRules" $values)) $part) }}
{{- end }}
{{ include "isolator.podMonitor" $part }}
{{ include "isolator.metricsPolicy" $part }}
{{- end -}}

{{- define "isolator.libsyncRules" -}}
- {apiGroups: [""], resources: [nodes], verbs: [{{ if .nodeLabel }}get, patch{{ else }}get{{ end }}]}
{{- if .nodeCondition }}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
{{- end }}
{{- end -}}
