{{/*
The monitor: what reads tenants' files, what writes a few words into them and what serves are containers of their own
(uid 0 with one capability and with none, no API token and no port; not root, with both), joined by sockets.
Context: a root context.
*/}}

{{- define "isolator.monitor" -}}
{{- $part := dict "root" . "part" "monitor" -}}
{{- $values := .Values.monitor -}}
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
      {{- with $values.runtimeClassName }}
      runtimeClassName: {{ . }}
      {{- end }}
      # NVML names processes by the host's PIDs, and their cgroups tell the containers.
      hostPID: true
      containers:
        - name: server
          {{- include "isolator.containerCommon" (merge (dict "security" (include "isolator.nonRoot" . | fromJson)) $part) | nindent 10 }}
          args:
            - serve
            - --log-level={{ .Values.logLevel }}
            - {{ printf "--listen-address=%s" .Values.listenAddress | quote }}
            - --listen-port={{ $values.metricsPort }}
            - --reader-socket=/run/isolator/reader.sock
            {{- if $values.steerer.enabled }}
            - --steerer-socket=/run/isolator/steerer.sock
            {{- end }}
            - {{ printf "--container-dir=%s" .Values.paths.containerVgpuMount | quote }}
            - {{ printf "--reservation-namespace=%s" .Values.kai.reservationNamespace | quote }}
            - --update-interval={{ include "isolator.seconds" (dict "path" "monitor.updateInterval" "value" $values.updateInterval) }}
            {{- if $values.legacyMetrics }}
            - --legacy-metrics
            {{- end }}
            - --node-name=$(NODE_NAME)
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
            - {name: socket, mountPath: /run/isolator}
            - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        - name: reader
          {{- include "isolator.containerCommon" (merge (dict "security" (include "isolator.readerSecurity" . | fromJson)) $part) | nindent 10 }}
          args:
            - read
            - --log-level={{ .Values.logLevel }}
            - --reader-socket=/run/isolator/reader.sock
            - --kubelet-root=/kubelet
            {{- range $index, $root := $values.regionRoots }}
            - --region-root=/regions/{{ $index }}
            {{- end }}
            {{- if include "isolator.regionsOnNode" . }}
            - --region-root=/regions/own
            {{- end }}
            - {{ printf "--host-dir=%s" .Values.paths.hostDir | quote }}
          env:
            - {name: NVIDIA_VISIBLE_DEVICES, value: all}
            - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          volumeMounts:
            - {name: socket, mountPath: /run/isolator}
            - {name: kubelet, mountPath: /kubelet, readOnly: true, mountPropagation: HostToContainer}
            - {name: library, mountPath: {{ .Values.paths.hostDir }}, readOnly: true}
            {{- range $index, $root := $values.regionRoots }}
            - {name: regions-{{ $index }}, mountPath: /regions/{{ $index }}, readOnly: true}
            {{- end }}
            {{- if include "isolator.regionsOnNode" . }}
            - {name: regions, mountPath: /regions/own, readOnly: true}
            {{- end }}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- if $values.steerer.enabled }}
        - name: steerer
          {{- include "isolator.containerCommon" (merge (dict "security" (include "isolator.steererSecurity" . | fromJson)) $part) | nindent 10 }}
          args:
            - steer
            - --log-level={{ .Values.logLevel }}
            - --steerer-socket=/run/isolator/steerer.sock
            - --kubelet-root=/kubelet
            {{- range $index, $root := $values.regionRoots }}
            - --region-root=/regions/{{ $index }}
            {{- end }}
            {{- if include "isolator.regionsOnNode" . }}
            - --region-root=/regions/own
            {{- end }}
          {{- with $values.extraEnv }}
          env:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          volumeMounts:
            - {name: socket, mountPath: /run/isolator}
            - {name: pods, mountPath: /kubelet/pods, mountPropagation: HostToContainer}
            {{- range $index, $root := $values.regionRoots }}
            - {name: regions-{{ $index }}, mountPath: /regions/{{ $index }}}
            {{- end }}
            {{- if include "isolator.regionsOnNode" . }}
            - {name: regions, mountPath: /regions/own}
            {{- end }}
            {{- with $values.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- end }}
      volumes:
        - name: socket
          emptyDir: {sizeLimit: 1Mi}
        # By hand, since only the container that serves may have the token.
        - name: token
          projected:
            defaultMode: 0444
            sources:
              - serviceAccountToken: {path: token, expirationSeconds: 3600}
              - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
              - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
        - name: kubelet
          hostPath: {path: {{ .Values.paths.kubeletRoot }}, type: Directory}
        {{- if $values.steerer.enabled }}
        - name: pods
          hostPath: {path: {{ printf "%s/pods" (.Values.paths.kubeletRoot | trimSuffix "/") }}, type: Directory}
        {{- end }}
        - name: library
          hostPath: {path: {{ .Values.paths.hostDir }}, type: DirectoryOrCreate}
        {{- range $index, $root := $values.regionRoots }}
        - name: regions-{{ $index }}
          hostPath: {path: {{ $root }}, type: DirectoryOrCreate}
        {{- end }}
        {{- if include "isolator.regionsOnNode" . }}
        # Made by libsync, in the mode that lets containers write their own part of it.
        - name: regions
          hostPath: {path: {{ .Values.paths.hostDir }}/containers, type: Directory}
        {{- end }}
        {{- with $values.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (printf "%s-monitor" (include "isolator.fullname" .)) "labels" $values.service.labels "annotations" $values.service.annotations) $part) | nindent 2 }}
spec:
  type: {{ $values.service.type }}
  selector:
    {{- include "isolator.selector" $part | nindent 4 }}
  ports:
    - {name: metrics, port: {{ $values.service.port }}, targetPort: metrics, protocol: TCP}
{{- if and $values.serviceMonitor.enabled (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1") }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name "labels" $values.serviceMonitor.labels) $part) | nindent 2 }}
spec:
  selector:
    matchLabels:
      {{- include "isolator.selector" $part | nindent 6 }}
  endpoints:
    - port: metrics
      path: /metrics
      # Its series have the labels namespace, pod and container of those that they tell of.
      honorLabels: true
      relabelings:
        {{- include "isolator.nodeRelabeling" . | nindent 8 }}
      interval: {{ $values.serviceMonitor.interval }}
      scrapeTimeout: {{ $values.serviceMonitor.scrapeTimeout }}
{{- end }}
{{- if .Values.rbac.create }}
{{ include "isolator.clusterRole" (merge (dict "rules" (include "isolator.monitorRules" .)) $part) }}
{{- end }}
{{ include "isolator.metricsPolicy" $part }}
{{- end -}}

{{/* root reads every tenant's region by this one capability; it loses it on exec if it is another user. */}}
{{- define "isolator.readerSecurity" -}}
{{- dict "runAsUser" 0 "runAsGroup" 0 "capabilities" (dict "drop" (list "ALL") "add" (list "DAC_READ_SEARCH")) | toJson -}}
{{- end -}}

{{/* root passes the kubelet's directories as their owner; regions are every user's to write. */}}
{{- define "isolator.steererSecurity" -}}
{{- dict "runAsUser" 0 "runAsGroup" 0 "capabilities" (dict "drop" (list "ALL")) | toJson -}}
{{- end -}}

{{- define "isolator.monitorRules" -}}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [""], resources: [events], verbs: [create]}
{{- end -}}
