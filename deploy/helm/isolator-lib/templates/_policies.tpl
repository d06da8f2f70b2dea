{{/*
What tenants may not do, held by the API server itself, whether or not a pod of ours runs. ValidatingAdmissionPolicies
are in admissionregistration.k8s.io/v1 since Kubernetes 1.30. Whoever may `update` `limits` of the API group
kai-resource-isolator.io in a namespace (cluster-admin may everything) is exempt from the first two.
*/}}

{{- define "isolator.policiesPossible" -}}
{{- if and .Values.policies.enabled (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) -}}true{{- end -}}
{{- end -}}

{{- define "isolator.mayResize" -}}
authorizer.group('kai-resource-isolator.io').resource('limits').namespace(request.namespace).check('update').allowed()
{{- end -}}

{{/* Where a container mounts its library from the source that is chosen: the file, or the image whole. */}}
{{- define "isolator.libraryMount" -}}
{{- if eq (include "isolator.libraryFrom" .) "image" -}}{{ .Values.paths.containerVgpuMount }}{{- else -}}{{ .Values.paths.containerVgpuMount }}/libvgpu.so{{- end -}}
{{- end -}}

{{/* One policy and its binding: dict root, name, spec, and optional bindings (extra matchResources). */}}
{{- define "isolator.policy" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" "webhook" "cluster" true "name" (printf "%s-%s" (include "isolator.fullname" .root) .name)) | nindent 2 }}
spec:
  failurePolicy: Fail
  {{- .spec | nindent 2 }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  {{- include "isolator.metadata" (dict "root" .root "part" "webhook" "cluster" true "name" (printf "%s-%s" (include "isolator.fullname" .root) .name)) | nindent 2 }}
spec:
  policyName: {{ include "isolator.fullname" .root }}-{{ .name }}
  validationActions: [{{ .action | default .root.Values.policies.action }}]
  matchResources:
    namespaceSelector:
      matchExpressions:
        {{- include "isolator.namespaceExpressions" .root | nindent 8 }}
      {{- with (.root.Values.webhook.namespaceSelector | default dict).matchLabels }}
      matchLabels:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- if .pods }}
    objectSelector:
      {{- include "isolator.objectSelector" (dict "root" .root "optOut" false) | nindent 6 }}
    {{- end }}
{{- end -}}

{{- define "isolator.requestsPolicy" -}}
matchConstraints:
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [UPDATE]
      resources: [pods, pods/status, pods/ephemeralcontainers, pods/resize]
variables:
  - name: now
    expression: "has(object.metadata.annotations) ? object.metadata.annotations : {}"
  - name: before
    expression: "has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}"
validations:
  - expression: >-
      (variables.now.all(k, !k.startsWith('kai-resource-isolator.io/request') ||
        (k in variables.before && variables.before[k] == variables.now[k])) &&
      variables.before.all(k, !k.startsWith('kai-resource-isolator.io/request') || k in variables.now)) ||
      {{ include "isolator.mayResize" . }}
    reason: Forbidden
    message: >-
      annotations kai-resource-isolator.io/request.* hold the pod's GPU limits and do not change after creation; who may
      update limits.kai-resource-isolator.io in this namespace may change them
  - expression: >-
      !('kai-resource-isolator.io/preload' in variables.before) || ('kai-resource-isolator.io/preload' in variables.now &&
      variables.now['kai-resource-isolator.io/preload'] == variables.before['kai-resource-isolator.io/preload'])
    reason: Forbidden
    message: annotation kai-resource-isolator.io/preload is what loads the library into the pod's containers and does not change
{{- end -}}

{{- define "isolator.limitsPolicy" -}}
{{- $writers := .Values.kai.limitWriters | default (list (printf "system:serviceaccount:%s:binder" .Values.kai.namespace)) -}}
matchConstraints:
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE, UPDATE]
      resources: [configmaps]
matchConditions:
  - name: not-kai
    expression: "!(request.userInfo.username in {{ $writers | toJson | replace "\"" "'" }})"
variables:
  - name: now
    expression: "has(object.data) && 'CUDA_DEVICE_MEMORY_LIMIT' in object.data ? object.data['CUDA_DEVICE_MEMORY_LIMIT'] : ''"
  - name: before
    expression: >-
      oldObject != null && has(oldObject.data) && 'CUDA_DEVICE_MEMORY_LIMIT' in oldObject.data ?
      oldObject.data['CUDA_DEVICE_MEMORY_LIMIT'] : ''
validations:
  - expression: >-
      (variables.now == variables.before &&
      !(has(object.binaryData) && 'CUDA_DEVICE_MEMORY_LIMIT' in object.binaryData)) ||
      {{ include "isolator.mayResize" . }}
    reason: Forbidden
    message: >-
      key CUDA_DEVICE_MEMORY_LIMIT of a ConfigMap is a pod's GPU limit and is written by KAI's binder only (kai.limitWriters)
{{- end -}}

{{/*
A pod that asks for a share must leave admission with its mounts. The fraction container is found as KAI finds it
(gpu-fraction-container-name, init containers first, else the first container); per-container annotations name theirs;
gpu-cores without a share is for the container with a whole GPU.
With webhook.onInternalError: warn, it warns: the webhook then lets such pods in on purpose. Whichever source of the
library is chosen, both are let in, so that none is refused while the webhook's replicas change from one to the other.
*/}}
{{- define "isolator.mountsPolicy" -}}
{{- $dir := .Values.paths.containerVgpuMount -}}
{{- /* Earlier versions do not know the field. With noexec the loader passes the library by. */ -}}
{{- $executable := ternary " && !has(m.bindMountOptions)" "" (semverCompare ">=1.37.0-0" .Capabilities.KubeVersion.Version) -}}
matchConstraints:
  resourceRules:
    - apiGroups: [""]
      apiVersions: [v1]
      operations: [CREATE]
      resources: [pods]
matchConditions:
  - name: asks-for-a-share
    expression: |
      {{- include "isolator.asksByAnnotation" . | nindent 6 }}
  - name: not-a-mirror-pod
    expression: |
      {{- include "isolator.notMirror" . | nindent 6 }}
variables:
  - name: optedOut
    {{- if .Values.webhook.podOptOut }}
    expression: >-
      !(has(namespaceObject.metadata.labels) && '{{ include "isolator.isolationLabel" . }}' in namespaceObject.metadata.labels &&
      namespaceObject.metadata.labels['{{ include "isolator.isolationLabel" . }}'] == 'enforce') &&
      (!({{ include "isolator.notOptedOut" . | nindent 6 | trim }}) ||
      (has(object.metadata.labels) && 'kai-resource-isolator.io/webhook' in object.metadata.labels &&
      object.metadata.labels['kai-resource-isolator.io/webhook'] == 'ignore'))
    {{- else }}
    expression: "false"
    {{- end }}
  - name: all
    expression: "(has(object.spec.initContainers) ? object.spec.initContainers : []) + object.spec.containers"
  - name: volumes
    expression: "has(object.spec.volumes) ? object.spec.volumes : []"
  - name: fromImage
    expression: "variables.volumes.exists(v, v.name == 'kai-resource-isolator-lib' && has(v.image))"
  - name: library
    expression: "variables.fromImage ? '{{ $dir }}' : '{{ $dir }}/libvgpu.so'"
  - name: preload
    expression: "variables.fromImage ? 'ld.so.preload' : ''"
  - name: fraction
    expression: >-
      'gpu-fraction-container-name' in object.metadata.annotations ?
      object.metadata.annotations['gpu-fraction-container-name'] : object.spec.containers[0].name
  - name: coresAlone
    expression: >-
      'kai-resource-isolator.io/gpu-cores' in object.metadata.annotations &&
      !('gpu-memory' in object.metadata.annotations || 'gpu-fraction' in object.metadata.annotations ||
      object.metadata.annotations.exists(k, k.startsWith('nvidia.com/container.') && k.contains('.gpu-memory.'))) &&
      !({{ include "isolator.asksByResource" . | nindent 6 | trim }})
  - name: sharing
    expression: >-
      variables.all.filter(c, (('gpu-memory' in object.metadata.annotations || 'gpu-fraction' in object.metadata.annotations) &&
      c.name == variables.fraction) ||
      object.metadata.annotations.exists(k, k.startsWith('nvidia.com/container.' + c.name + '.gpu-memory.')) ||
      (variables.coresAlone && has(c.resources) && has(c.resources.limits) && 'nvidia.com/gpu' in c.resources.limits &&
      c.resources.limits['nvidia.com/gpu'] != '0'))
validations:
  - expression: >-
      variables.optedOut || (variables.sharing.size() > 0 ||
      !('gpu-memory' in object.metadata.annotations || 'gpu-fraction' in object.metadata.annotations)) &&
      variables.sharing.all(c, has(c.volumeMounts) &&
      c.volumeMounts.exists(m, m.mountPath == variables.library && m.name == 'kai-resource-isolator-lib' && has(m.readOnly) && m.readOnly{{ $executable }}) &&
      c.volumeMounts.exists(m, m.mountPath == '/etc/ld.so.preload' && m.name == 'kai-resource-isolator-preload' && has(m.readOnly) && m.readOnly &&
      (has(m.subPath) ? m.subPath : '') == variables.preload) &&
      c.volumeMounts.exists(m, m.mountPath == '{{ $dir }}/limits' && m.name.startsWith('kai-resource-isolator-limits-') && has(m.readOnly) && m.readOnly))
    reason: Forbidden
    message: >-
      this pod asks for a share of a GPU, or of its time, and a container that should get it has not the mounts that cap it: the
      webhook of kai-resource-isolator was not called, or a later webhook removed them
  - expression: >-
      variables.optedOut || variables.volumes.all(v, (v.name != 'kai-resource-isolator-lib' ||
      (has(v.hostPath) && v.hostPath.path == '{{ .Values.paths.hostDir }}/libvgpu.so') ||
      (has(v.image) && v.image.reference == '{{ include "isolator.image" (dict "root" . "part" "library") }}')) &&
      (v.name != 'kai-resource-isolator-preload' ||
      (has(v.hostPath) && v.hostPath.path == '{{ .Values.paths.hostDir }}/ld.so.preload') ||
      (has(v.projected) && v.projected.sources.all(s, has(s.downwardAPI) && s.downwardAPI.items.all(i, has(i.fieldRef) &&
      i.fieldRef.fieldPath == "metadata.annotations['kai-resource-isolator.io/preload']")) &&
      'kai-resource-isolator.io/preload' in object.metadata.annotations &&
      object.metadata.annotations['kai-resource-isolator.io/preload'] == '{{ $dir }}/libvgpu.so\n')))
    reason: Forbidden
    message: >-
      volumes kai-resource-isolator-lib and kai-resource-isolator-preload must be the node's library and preload file, or
      the library's image and the annotation that names it
  - expression: >-
      variables.optedOut || variables.volumes.all(v, !v.name.startsWith('kai-resource-isolator-limits-') || (has(v.projected) &&
      v.projected.sources.exists(s, has(s.downwardAPI) && s.downwardAPI.items.exists(i, i.path == 'request' && has(i.fieldRef) &&
      i.fieldRef.fieldPath == "metadata.annotations['kai-resource-isolator.io/request." +
      v.name.substring('kai-resource-isolator-limits-'.size()) + "']")) &&
      ('kai-resource-isolator.io/request.' + v.name.substring('kai-resource-isolator-limits-'.size())) in object.metadata.annotations))
    reason: Forbidden
    message: volumes kai-resource-isolator-limits-* must project the request annotation of their container
  {{- /* Both kinds of volumes, since pods of both come in while a release changes from one to the other. */}}
  - expression: >-
      variables.optedOut || variables.volumes.all(v, !v.name.startsWith('kai-resource-isolator-region-') || has(v.emptyDir) ||
      (has(v.hostPath) && v.hostPath.path == '{{ .Values.paths.hostDir }}/containers'))
    reason: Forbidden
    message: volumes kai-resource-isolator-region-* must be of the pod's own, or the node's directory of regions
  - expression: >-
      variables.optedOut || !variables.volumes.exists(v, v.name.startsWith('kai-resource-isolator-region-') && has(v.hostPath)) ||
      variables.all.all(c, !has(c.volumeMounts) ||
      !c.volumeMounts.exists(m, m.name.startsWith('kai-resource-isolator-region-')) ||
      c.volumeMounts.all(m, !m.name.startsWith('kai-resource-isolator-region-') ||
      (has(m.subPathExpr) && m.subPathExpr == '$(POD_UID)_' + c.name)) &&
      has(c.env) && c.env.exists(e, e.name == 'POD_UID') && c.env.all(e, e.name != 'POD_UID' ||
      (has(e.valueFrom) && has(e.valueFrom.fieldRef) && e.valueFrom.fieldRef.fieldPath == 'metadata.uid')))
    reason: Forbidden
    message: >-
      of the node's directory of regions a container may mount its own part alone, by the subPathExpr $(POD_UID)_NAME with
      POD_UID from metadata.uid
{{- end -}}

{{- define "isolator.policies" -}}
{{- if include "isolator.policiesPossible" . }}
{{ include "isolator.policy" (dict "root" . "name" "requests" "spec" (include "isolator.requestsPolicy" .)) }}
{{ include "isolator.policy" (dict "root" . "name" "limits" "spec" (include "isolator.limitsPolicy" .)) }}
{{ include "isolator.policy" (dict "root" . "name" "mounts" "pods" true "action" (ternary "Warn" "" (eq .Values.webhook.onInternalError "warn")) "spec" (include "isolator.mountsPolicy" .)) }}
{{- end }}
{{- end -}}
