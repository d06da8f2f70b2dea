{{/* vramd. Context: a root context. */}}

{{- define "isolator.vramd" -}}
{{- $part := dict "root" . "part" "vramd" -}}
{{- $values := .Values.vramd -}}
{{- $name := include "isolator.workload" $part -}}
{{ include "isolator.serviceAccountObject" $part }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name) $part) | nindent 2 }}
spec:
  {{- include "isolator.replicas" $part | nindent 2 }}
  template:
    metadata:
      {{- include "isolator.podMetadata" $part | nindent 6 }}
    spec:
      {{- include "isolator.podSpec" (merge (dict "token" true "podSecurity" (include "isolator.nonRoot" . | fromJson)) $part) | nindent 6 }}
      {{- include "isolator.spread" $part | nindent 6 }}
      containers:
        - name: vramd
          {{- include "isolator.containerCommon" $part | nindent 10 }}
          args:
            - serve
            - --log-level={{ .Values.logLevel }}
            - {{ printf "--listen-address=%s" .Values.listenAddress | quote }}
            - --listen-port={{ $values.port }}
            - --metrics-port={{ $values.metricsPort }}
            {{- if $values.tlsSecret }}
            - --tls-cert-file=/etc/tls/tls.crt
            - --tls-key-file=/etc/tls/tls.key
            - --tls-client-ca-file=/etc/tls/ca.crt
            {{- end }}
            {{- if $values.perGpuVramMib }}
            - --per-gpu-vram-mib={{ int64 $values.perGpuVramMib }}
            {{- end }}
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          {{- with $values.extraEnv }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - {name: grpc, containerPort: {{ $values.port }}, protocol: TCP}
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
            periodSeconds: 2
            timeoutSeconds: 2
          {{- $mounts := list }}
          {{- if $values.tlsSecret }}{{ $mounts = append $mounts (dict "name" "tls" "mountPath" "/etc/tls" "readOnly" true) }}{{ end }}
          {{- with concat $mounts $values.extraVolumeMounts }}
          volumeMounts:
            {{- toYaml . | nindent 12 }}
          {{- end }}
      {{- $volumes := list }}
      {{- with $values.tlsSecret }}{{ $volumes = append $volumes (dict "name" "tls" "secret" (dict "secretName" .)) }}{{ end }}
      {{- with concat $volumes $values.extraVolumes }}
      volumes:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{ include "isolator.availability" $part }}
---
# Headless, so that the webhook's gRPC client sees every replica and balances over them.
apiVersion: v1
kind: Service
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name) $part) | nindent 2 }}
spec:
  clusterIP: None
  selector:
    {{- include "isolator.selector" $part | nindent 4 }}
  ports:
    - {name: grpc, port: {{ $values.port }}, targetPort: grpc, protocol: TCP, appProtocol: grpc}
{{- if .Values.rbac.create }}
{{ include "isolator.clusterRole" (merge (dict "rules" "- {apiGroups: [\"\"], resources: [nodes], verbs: [list, watch]}") $part) }}
{{- end }}
{{ include "isolator.podMonitor" $part }}
{{ include "isolator.metricsPolicy" (merge (dict "ports" (include "isolator.vramdPorts" .)) $part) }}
{{- end -}}

{{/* Only webhooks of this project, in any namespace, ask vramd. One in the node's network is no pod to a policy. */}}
{{- define "isolator.vramdPorts" -}}
- ports: [{port: grpc, protocol: TCP}]
  {{- if not (.Values.webhook | default dict).hostNetwork }}
  from:
    - podSelector:
        matchLabels: {app.kubernetes.io/part-of: kai-resource-isolator, app.kubernetes.io/component: webhook}
      namespaceSelector: {}
  {{- end }}
{{- end -}}
