{{/* The admission webhook: everything it needs, in one document stream. Context: a root context. */}}

{{- define "isolator.webhookService" -}}
{{- include "isolator.fullname" . }}-webhook
{{- end -}}

{{- define "isolator.webhookHost" -}}
{{- include "isolator.webhookService" . }}.{{ include "isolator.namespace" . }}.svc
{{- end -}}

{{/* Where the certificate comes from: certManager, existing or managed. */}}
{{- define "isolator.certificateFrom" -}}
{{- if .Values.tls.certManager.enabled -}}certManager{{- else if .Values.tls.existingSecret -}}existing{{- else -}}managed{{- end -}}
{{- end -}}

{{- define "isolator.certificateSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-webhook-certificate" (include "isolator.fullname" .)) -}}
{{- end -}}

{{- define "isolator.vramdAddress" -}}
{{- $own := (.Values.vramd | default dict) -}}
{{- if .Values.webhook.vramdAddress -}}
{{- .Values.webhook.vramdAddress -}}
{{- else -}}
{{- printf "dns:///%s.%s.svc:%v" (include "isolator.workload" (dict "root" . "part" "vramd")) (include "isolator.namespace" .) ($own.port | default 50051 | int) -}}
{{- end -}}
{{- end -}}

{{- define "isolator.webhook" -}}
{{- $part := dict "root" . "part" "webhook" -}}
{{- $values := .Values.webhook -}}
{{ include "isolator.serviceAccountObject" $part }}
{{ include "isolator.webhookDeployment" . }}
{{ include "isolator.availability" $part }}
---
apiVersion: v1
kind: Service
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (include "isolator.webhookService" .)) $part) | nindent 2 }}
spec:
  type: {{ .Values.service.type }}
  selector:
    {{- include "isolator.selector" $part | nindent 4 }}
  ports:
    - {name: https, port: {{ .Values.service.port }}, targetPort: https, protocol: TCP}
{{ include "isolator.webhookCertificate" . }}
{{ include "isolator.webhookConfiguration" . }}
{{ include "isolator.policies" . }}
{{ include "isolator.podMonitor" $part }}
{{ include "isolator.metricsPolicy" (merge (dict "ports" (include "isolator.webhookPorts" .)) $part) }}
{{- end -}}

{{/* The API server's address is not known to a chart and often not a pod's, so the port is open to all. */}}
{{- define "isolator.webhookPorts" -}}
- ports: [{port: https, protocol: TCP}]
{{- end -}}

{{- define "isolator.webhookDeployment" -}}
{{- $part := dict "root" . "part" "webhook" -}}
{{- $values := .Values.webhook -}}
{{- $managed := eq (include "isolator.certificateFrom" .) "managed" -}}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (include "isolator.workload" $part)) $part) | nindent 2 }}
spec:
  {{- include "isolator.replicas" $part | nindent 2 }}
  template:
    metadata:
      {{- include "isolator.podMetadata" $part | nindent 6 }}
    spec:
      {{- include "isolator.podSpec" (merge (dict "token" true "podSecurity" (include "isolator.nonRoot" . | fromJson)) $part) | nindent 6 }}
      {{- include "isolator.spread" $part | nindent 6 }}
      {{- if $values.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      containers:
        - name: webhook
          {{- include "isolator.containerCommon" $part | nindent 10 }}
          args:
            - serve
            - --log-level={{ .Values.logLevel }}
            - {{ printf "--listen-address=%s" .Values.listenAddress | quote }}
            - --listen-port={{ $values.port }}
            - --metrics-port={{ $values.metricsPort }}
            - {{ printf "--host-dir=%s" .Values.paths.hostDir | quote }}
            - {{ printf "--container-dir=%s" .Values.paths.containerVgpuMount | quote }}
            - --library={{ .Values.volumes.library }}
            {{- if eq .Values.volumes.library "image" }}
            - {{ printf "--library-image=%s" (include "isolator.image" (dict "root" . "part" "library")) | quote }}
            - {{ printf "--library-image-pull-policy=%s" (include "isolator.pullPolicy" (dict "root" . "part" "library")) | quote }}
            - --{{ ternary "" "no-" .Values.volumes.imageVolumeGate }}image-volume-gate
            {{- end }}
            - --region={{ ternary "hostPath" "emptyDir" (eq (include "isolator.regionsOnNode" .) "true") }}
            - --region-size-mib={{ int64 $values.regionSizeMib }}
            - --fraction-of={{ $values.fractionOf }}
            - --hami-resources={{ $values.hamiResources }}
            - {{ printf "--hami-scheduler=%s" $values.hamiScheduler | quote }}
            - {{ printf "--kai-scheduler=%s" .Values.kai.schedulerName | quote }}
            - --{{ ternary "" "no-" .Values.kai.readsContainers }}kai-reads-containers
            - --{{ ternary "" "no-" $values.podOptOut }}pod-opt-out
            - --on-internal-error={{ $values.onInternalError }}
            - --guard={{ $values.guard.mode }}
            {{- if ne $values.guard.mode "off" }}
            {{- range include "isolator.guardExempt" . | fromJsonArray }}
            - {{ printf "--guard-exempt-namespaces=%s" . | quote }}
            {{- end }}
            {{- range $values.guard.nvidiaRuntimeClasses }}
            - {{ printf "--nvidia-runtime-classes=%s" . | quote }}
            {{- end }}
            - --{{ ternary "" "no-" $values.guard.nvidiaIsDefaultRuntime }}nvidia-is-default-runtime
            {{- end }}
            - {{ printf "--vramd-address=%s" (include "isolator.vramdAddress" .) | quote }}
            - --vramd-deadline-ms={{ $values.vramdDeadlineMs }}
            {{- if $values.vramdTlsSecret }}
            - --vramd-ca-file=/etc/vramd-tls/ca.crt
            - --vramd-certificate-file=/etc/vramd-tls/tls.crt
            - --vramd-key-file=/etc/vramd-tls/tls.key
            {{- end }}
            - --namespace={{ include "isolator.namespace" . }}
            - --service-name={{ include "isolator.webhookService" . }}
            - --webhook-configurations={{ include "isolator.fullname" . }}-mutating
            {{- if $managed }}
            - --tls=managed
            - --secret-name={{ include "isolator.certificateSecret" . }}
            - --lease-name={{ include "isolator.certificateSecret" . }}
            - --pod-name=$(POD_NAME)
            - --authority-days={{ .Values.tls.authorityDays }}
            - --leaf-days={{ .Values.tls.leafDays }}
            {{- else }}
            - --tls=files
            - --certificate-file=/etc/tls/tls.crt
            - --key-file=/etc/tls/tls.key
            {{- end }}
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - {name: ISOLATOR_WEBHOOK_GPU_SHARE_RESOURCES, value: {{ $values.gpuShareResources | quote }}}
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            - {name: https, containerPort: {{ $values.port }}, protocol: TCP}
            - {name: metrics, containerPort: {{ $values.metricsPort }}, protocol: TCP}
          startupProbe:
            httpGet: {path: /healthz, port: https, scheme: HTTPS}
            periodSeconds: 1
            failureThreshold: 60
          livenessProbe:
            httpGet: {path: /healthz, port: https, scheme: HTTPS}
            periodSeconds: 10
            timeoutSeconds: 5
          readinessProbe:
            httpGet: {path: /readyz, port: https, scheme: HTTPS}
            periodSeconds: 2
            timeoutSeconds: 2
          {{- $mounts := list }}
          {{- if not $managed }}{{ $mounts = append $mounts (dict "name" "certificate" "mountPath" "/etc/tls" "readOnly" true) }}{{ end }}
          {{- if $values.vramdTlsSecret }}{{ $mounts = append $mounts (dict "name" "vramd-tls" "mountPath" "/etc/vramd-tls" "readOnly" true) }}{{ end }}
          {{- with concat $mounts $values.extraVolumeMounts }}
          volumeMounts:
            {{- toYaml . | nindent 12 }}
          {{- end }}
      {{- $volumes := list }}
      {{- if not $managed }}{{ $volumes = append $volumes (dict "name" "certificate" "secret" (dict "secretName" (include "isolator.certificateSecret" .))) }}{{ end }}
      {{- with $values.vramdTlsSecret }}{{ $volumes = append $volumes (dict "name" "vramd-tls" "secret" (dict "secretName" .)) }}{{ end }}
      {{- with concat $volumes $values.extraVolumes }}
      volumes:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}

{{- define "isolator.webhookCertificate" -}}
{{- $part := dict "root" . "part" "webhook" -}}
---
# In every mode, so that it never comes and goes: helm's client-side rollback cannot patch a Lease that the revision it
# leaves did not have.
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (printf "%s-webhook-certificate" (include "isolator.fullname" .))) $part) | nindent 2 }}
{{- if eq (include "isolator.certificateFrom" .) "managed" }}
{{- $name := include "isolator.certificateSecret" . }}
---
# Empty: the webhook fills Secret and Lease. They exist from the start because a right to create cannot be limited to one
# name.
apiVersion: v1
kind: Secret
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name) $part) | nindent 2 }}
type: Opaque
{{- if .Values.rbac.create }}
{{ include "isolator.role" (merge (dict "rules" (include "isolator.webhookRules" .)) $part) }}
{{- end }}
{{- end }}
{{- if .Values.rbac.create }}
{{ include "isolator.clusterRole" (merge (dict "rules" (include "isolator.webhookClusterRules" .)) $part) }}
{{- end }}
{{- if eq (include "isolator.certificateFrom" .) "certManager" }}
{{- $name := include "isolator.certificateSecret" . }}
{{- if not .Values.tls.certManager.issuerRef }}
{{- $authority := printf "%s-webhook-authority" (include "isolator.fullname" .) }}
---
# An authority that outlives the certificates: were each signed by itself, the API server would trust the next one before
# the webhook serves it, and refuse sharing pods until then.
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $authority) $part) | nindent 2 }}
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $authority) $part) | nindent 2 }}
spec:
  isCA: true
  commonName: {{ $authority }}
  secretName: {{ $authority }}
  duration: {{ mul 24 .Values.tls.authorityDays }}h
  privateKey: {algorithm: ECDSA}
  issuerRef: {name: {{ $authority }}, kind: Issuer}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name) $part) | nindent 2 }}
spec:
  ca: {secretName: {{ $authority }}}
{{- end }}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  {{- include "isolator.metadata" (merge (dict "name" $name) $part) | nindent 2 }}
spec:
  secretName: {{ $name }}
  duration: {{ mul 24 .Values.tls.leafDays }}h
  dnsNames:
    - {{ include "isolator.webhookHost" . }}
  privateKey: {algorithm: ECDSA, rotationPolicy: Always}
  issuerRef:
    {{- .Values.tls.certManager.issuerRef | default (dict "name" $name "kind" "Issuer") | toYaml | nindent 4 }}
{{- end }}
{{- end -}}

{{- define "isolator.webhookRules" -}}
- {apiGroups: [""], resources: [secrets], resourceNames: [{{ include "isolator.certificateSecret" . }}], verbs: [get, patch]}
- {apiGroups: [coordination.k8s.io], resources: [leases], resourceNames: [{{ include "isolator.certificateSecret" . }}], verbs: [get, patch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list]}
{{- end -}}

{{/* It is ready once the configuration trusts its certificate, and writes that itself where the certificate is managed. */}}
{{- define "isolator.webhookClusterRules" -}}
{{- $verbs := ternary "get, patch" "get" (eq (include "isolator.certificateFrom" .) "managed") -}}
- {apiGroups: [admissionregistration.k8s.io], resources: [mutatingwebhookconfigurations], resourceNames: [{{ include "isolator.fullname" . }}-mutating], verbs: [{{ $verbs }}]}
{{- end -}}

{{- define "isolator.webhookConfiguration" -}}
{{- $part := dict "root" . "part" "webhook" -}}
{{- $values := .Values.webhook -}}
{{- $annotations := dict -}}
{{- if eq (include "isolator.certificateFrom" .) "certManager" -}}
{{- $_ := set $annotations "cert-manager.io/inject-ca-from" (printf "%s/%s" (include "isolator.namespace" .) (include "isolator.certificateSecret" .)) -}}
{{- end -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata:
  {{- include "isolator.metadata" (merge (dict "name" (printf "%s-mutating" (include "isolator.fullname" .)) "cluster" true "annotations" $annotations) $part) | nindent 2 }}
webhooks:
  {{- /* One entry a treatment of namespaces. The first keeps upstream's name. */}}
  {{- $label := include "isolator.isolationLabel" . }}
  {{- include "isolator.webhookEntry" (dict "root" . "name" "vgpu.lib.kai-resource-isolator.io" "path" "/mutate" "optOut" $values.podOptOut "operator" "NotIn" "isolation" (list "enforce" "exempt")) | nindent 2 }}
  {{- include "isolator.webhookEntry" (dict "root" . "name" "enforce.vgpu.lib.kai-resource-isolator.io" "path" "/mutate/enforce" "optOut" false "operator" "In" "isolation" (list "enforce")) | nindent 2 }}
  {{- include "isolator.webhookEntry" (dict "root" . "name" "exempt.vgpu.lib.kai-resource-isolator.io" "path" "/mutate/exempt" "optOut" $values.podOptOut "operator" "In" "isolation" (list "exempt")) | nindent 2 }}
  {{- if ne $values.guard.mode "off" }}
  {{- include "isolator.guardEntry" (dict "root" . "name" "guard.vgpu.lib.kai-resource-isolator.io" "path" "/guard" "operator" "NotIn") | nindent 2 }}
  {{- include "isolator.guardEntry" (dict "root" . "name" "enforce.guard.vgpu.lib.kai-resource-isolator.io" "path" "/guard/enforce" "operator" "In") | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "isolator.webhookClient" -}}
clientConfig:
  {{- if eq (include "isolator.certificateFrom" .root) "existing" }}
  caBundle: {{ .root.Values.tls.caBundle | b64enc }}
  {{- end }}
  service:
    name: {{ include "isolator.webhookService" .root }}
    namespace: {{ include "isolator.namespace" .root }}
    path: {{ .path }}
    port: {{ .root.Values.service.port }}
# Not UPDATE of pods: KAI's binder patches pods while it binds them.
rules:
  - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods], scope: Namespaced}
  - {apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods/ephemeralcontainers], scope: Namespaced}
{{- end -}}

{{/*
The guard has a failure policy of its own, since it may have to look at every pod. In a namespace that is enforced a pod's opt-out does
not count, so its share is capped and gives it its GPU.
*/}}
{{- define "isolator.guardEntry" -}}
{{- $values := .root.Values.webhook -}}
- name: {{ .name }}
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: {{ $values.guard.failurePolicy }}
  reinvocationPolicy: IfNeeded
  timeoutSeconds: {{ $values.timeoutSeconds }}
  matchPolicy: Equivalent
  {{- include "isolator.webhookClient" . | nindent 2 }}
  namespaceSelector:
    matchExpressions:
      - {key: {{ include "isolator.isolationLabel" .root }}, operator: {{ .operator }}, values: [enforce]}
      {{- include "isolator.namespaceExpressions" .root | nindent 6 }}
      - key: kubernetes.io/metadata.name
        operator: NotIn
        values: {{ include "isolator.guardExempt" .root }}
    {{- with ($values.namespaceSelector | default dict).matchLabels }}
    matchLabels:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  objectSelector: {}
  matchConditions:
    - name: reaches-a-gpu
      expression: |
        {{- include "isolator.reachesGpu" .root | nindent 8 }}
    - name: not-a-mirror-pod
      expression: |
        {{- include "isolator.notMirror" .root | nindent 8 }}
{{- end -}}

{{- define "isolator.guardExempt" -}}
{{- prepend .Values.webhook.guard.exemptNamespaces .Values.kai.reservationNamespace | uniq | toJson -}}
{{- end -}}

{{- define "isolator.webhookEntry" -}}
{{- $values := .root.Values.webhook -}}
- name: {{ .name }}
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: {{ $values.failurePolicy }}
  reinvocationPolicy: {{ $values.reinvocationPolicy }}
  timeoutSeconds: {{ $values.timeoutSeconds }}
  matchPolicy: Equivalent
  {{- include "isolator.webhookClient" . | nindent 2 }}
  namespaceSelector:
    matchExpressions:
      - {key: {{ include "isolator.isolationLabel" .root }}, operator: {{ .operator }}, values: {{ .isolation | toJson }}}
      {{- include "isolator.namespaceExpressions" .root | nindent 6 }}
    {{- with ($values.namespaceSelector | default dict).matchLabels }}
    matchLabels:
      {{- toYaml . | nindent 6 }}
    {{- end }}
  objectSelector:
    {{- include "isolator.objectSelector" . | nindent 4 }}
  matchConditions:
    - name: asks-for-a-share
      expression: |
        ({{ include "isolator.asksByAnnotation" .root | nindent 8 | trim }}) ||
        {{- include "isolator.asksByResource" .root | nindent 8 }}
    {{- if .optOut }}
    - name: not-opted-out
      expression: |
        {{- include "isolator.notOptedOut" .root | nindent 8 }}
    {{- end }}
    - name: not-a-mirror-pod
      expression: |
        {{- include "isolator.notMirror" .root | nindent 8 }}
{{- end -}}
