{{/*
Which pods ask for a share, in CEL. None of these may err on any pod: an error under `failurePolicy: Fail` refuses it.
The annotations are KAI's (pkg/common/constants/constants.go) and ours; by those that the webhook made, a running pod still
is one that shares when its author has taken his own away, and a debug container comes.
*/}}

{{/* Resource names of gpuShareResources that mark a share; a bare nvidia.com/gpu is a whole GPU. */}}
{{- define "isolator.shareResources" -}}
{{- $names := list -}}
{{- range splitList "," .Values.webhook.gpuShareResources -}}
{{- $name := trim . -}}
{{- if and $name (ne $name "nvidia.com/gpu") -}}
{{- if not (regexMatch "^[a-z0-9.-]+/[A-Za-z0-9._-]+$" $name) -}}
{{- fail (printf "webhook.gpuShareResources has %q: accepted are resource names such as nvidia.com/gpumem, separated by commas" $name) -}}
{{- end -}}
{{- $names = append $names (printf "'%s'" $name) -}}
{{- end -}}
{{- end -}}
{{- join ", " $names -}}
{{- end -}}

{{- define "isolator.asksByAnnotation" -}}
has(object.metadata.annotations) && (
  'gpu-memory' in object.metadata.annotations || 'gpu-fraction' in object.metadata.annotations ||
  'gpu-fraction-num-devices' in object.metadata.annotations ||
  'kai-resource-isolator.io/gpu-cores' in object.metadata.annotations ||
  object.metadata.annotations.exists(k, k.startsWith('nvidia.com/container.') || k.startsWith('kai-resource-isolator.io/request.')))
{{- end -}}

{{- define "isolator.asksByResource" -}}
{{- $resources := include "isolator.shareResources" . -}}
{{- if $resources -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
  has(c.resources) && has(c.resources.limits) && c.resources.limits.exists(r, r in [{{ $resources }}]))
{{- else -}}
false
{{- end -}}
{{- end -}}

{{- define "isolator.notOptedOut" -}}
!(has(object.metadata.annotations) && 'kai-resource-isolator.io/inject' in object.metadata.annotations &&
  object.metadata.annotations['kai-resource-isolator.io/inject'].matches('^(?i)false$'))
{{- end -}}

{{- define "isolator.notMirror" -}}
!(has(object.metadata.annotations) && 'kubernetes.io/config.mirror' in object.metadata.annotations)
{{- end -}}

{{/*
Pods that can reach a GPU: by the runtime (KAI sets it after this is looked at), by an annotation, or privileged.
*/}}
{{- define "isolator.reachesGpu" -}}
{{- $classes := list -}}
{{- range .Values.webhook.guard.nvidiaRuntimeClasses }}{{ $classes = append $classes (printf "'%s'" .) }}{{ end -}}
(has(object.spec.runtimeClassName) ? object.spec.runtimeClassName in [{{ join ", " $classes }}] : {{ .Values.webhook.guard.nvidiaIsDefaultRuntime }}) ||
(has(object.spec.schedulerName) && object.spec.schedulerName == '{{ .Values.kai.schedulerName }}') ||
(has(object.metadata.annotations) && object.metadata.annotations.exists(k, k.startsWith('cdi.k8s.io/') ||
  k.startsWith('nvidia.cdi.k8s.io/') || (k.startsWith('nvidia.com/container.') && k.endsWith('.gpus.devices')))) ||
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : [])).exists(c,
  has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged) ||
(has(object.spec.ephemeralContainers) && object.spec.ephemeralContainers.exists(c,
  has(c.securityContext) && has(c.securityContext.privileged) && c.securityContext.privileged))
{{- end -}}

{{- define "isolator.isolationLabel" -}}kai-resource-isolator.io/isolation{{- end -}}

{{/* Namespaces that admission looks at. An administrator's label leaves one out, as the upstream chart's does. */}}
{{- define "isolator.namespaceExpressions" -}}
- key: kai-resource-isolator.io/webhook
  operator: NotIn
  values: [ignore]
- key: kubernetes.io/metadata.name
  operator: NotIn
  values: {{ prepend .Values.webhook.excludedNamespaces (include "isolator.namespace" .) | uniq | toJson }}
{{- with (.Values.webhook.namespaceSelector | default dict).matchExpressions }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: tenants write them, so upstream's opt-out by one is heeded only with webhook.podOptOut. */}}
{{- define "isolator.objectSelector" -}}
{{- $own := .root.Values.webhook.objectSelector | default dict -}}
{{- $expressions := $own.matchExpressions | default list -}}
{{- if .optOut -}}
{{- $expressions = prepend $expressions (dict "key" "kai-resource-isolator.io/webhook" "operator" "NotIn" "values" (list "ignore")) -}}
{{- end -}}
{{- $selector := dict -}}
{{- if $expressions }}{{ $_ := set $selector "matchExpressions" $expressions }}{{ end -}}
{{- with $own.matchLabels }}{{ $_ := set $selector "matchLabels" . }}{{ end -}}
{{- toYaml $selector -}}
{{- end -}}
