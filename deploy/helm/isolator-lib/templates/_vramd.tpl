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
            - --listen-port={{ $values.port }}
            {{- if $values.perGpuVramMib }}
            - --per-gpu-vram-mib={{ $values.perGpuVramMib }}
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
          startupProbe:
            grpc: {port: {{ $values.port }}}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            grpc: {port: {{ $values.port }}}
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            grpc: {port: {{ $values.port }}, service: isolator.vram.v1.Vram}
            periodSeconds: 2
            timeoutSeconds: 2
          {{- with $values.extraVolumeMounts }}
          volumeMounts:
            {{- toYaml . | nindent 12 }}
          {{- end }}
      {{- with $values.extraVolumes }}
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
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (printf "%s-%s" $name (include "isolator.namespace" .)) "cluster" true) $part) | nindent 2 }}
rules:
  - {apiGroups: [""], resources: [nodes], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (printf "%s-%s" $name (include "isolator.namespace" .)) "cluster" true) $part) | nindent 2 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ printf "%s-%s" $name (include "isolator.namespace" .) }}}
subjects:
  - {kind: ServiceAccount, name: {{ include "isolator.serviceAccount" $part }}, namespace: {{ include "isolator.namespace" . }}}
{{- end }}
{{- if .Values.networkPolicy.enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name) $part) | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "isolator.selector" $part | nindent 6 }}
  policyTypes: [Ingress]
  ingress:
    - ports: [{port: grpc, protocol: TCP}]
      from:
        - podSelector:
            matchLabels: {app.kubernetes.io/part-of: kai-resource-isolator, app.kubernetes.io/component: webhook}
          namespaceSelector: {}
{{- end }}
{{- end -}}
