{{/*
Values that nothing reads end the rendering with a sentence, in parts that are switched off too. known.json is made from
values.yaml by `python -m deploy.helm.generate`.
*/}}

{{- define "isolator.check" -}}
{{- $known := .Files.Get "known.json" | fromJson -}}
{{- include "isolator.checkRetired" . -}}
{{- include "isolator.checkLevel" (dict "given" .Values "tree" $known.tree "above" "" "paths" $known.paths) -}}
{{- include "isolator.checkPaths" . -}}
{{- include "isolator.checkLibrary" . -}}
{{- with .Values.tls -}}
{{- if and .certManager.enabled .existingSecret -}}
{{- fail "tls.certManager.enabled and tls.existingSecret are both set: the webhook has one certificate, so set one of them" -}}
{{- end -}}
{{- if and .existingSecret (not .caBundle) -}}
{{- fail "tls.existingSecret is set without tls.caBundle: the API server needs the certificate authority (PEM) of that Secret" -}}
{{- end -}}
{{- if and .caBundle (not .existingSecret) -}}
{{- fail "tls.caBundle is set without tls.existingSecret: it is the authority of that Secret's certificate, and nothing else reads it" -}}
{{- end -}}
{{- end -}}
{{- include "isolator.checkVramdTls" . -}}
{{- end -}}

{{/* A webhook and a vramd of one release of which one alone speaks TLS would never meet. */}}
{{- define "isolator.checkVramdTls" -}}
{{- $webhook := .Values.webhook | default dict -}}
{{- $vramd := .Values.vramd | default dict -}}
{{- if and $webhook.enabled $vramd.enabled (not $webhook.vramdAddress) (ne (empty $webhook.vramdTlsSecret) (empty $vramd.tlsSecret)) -}}
{{- fail (printf "%s is set without %s: the webhook could not ask vramd, so set both" (ternary "vramd.tlsSecret" "webhook.vramdTlsSecret" (empty $webhook.vramdTlsSecret)) (ternary "webhook.vramdTlsSecret" "vramd.tlsSecret" (empty $webhook.vramdTlsSecret))) -}}
{{- end -}}
{{- end -}}

{{/* Where a pod's library comes from: hostPath or image. A thin chart may have no say in it. */}}
{{- define "isolator.libraryFrom" -}}
{{- (.Values.volumes | default dict).library | default "hostPath" -}}
{{- end -}}

{{/* libsync has something to do on nodes: the library's files, or the directory of regions. */}}
{{- define "isolator.libsyncNeeded" -}}
{{- if and .Values.librarySync.enabled (or (eq (include "isolator.libraryFrom" .) "hostPath") (include "isolator.regionsOnNode" .)) -}}true{{- end -}}
{{- end -}}

{{/* Image volumes: feature gate ImageVolume since Kubernetes 1.31, on by default since 1.35. */}}
{{- define "isolator.checkLibrary" -}}
{{- if eq (include "isolator.libraryFrom" .) "image" -}}
{{- $version := .Capabilities.KubeVersion.Version -}}
{{- if semverCompare "<1.31.0-0" $version -}}
{{- fail (printf "volumes.library is image: Kubernetes %s has no image volumes, 1.31 and later have; use hostPath" $version) -}}
{{- else if and (semverCompare "<1.35.0-0" $version) (not .Values.volumes.imageVolumeGate) -}}
{{- fail (printf "volumes.library is image: Kubernetes %s has image volumes only with the feature gate ImageVolume in the API server and every kubelet; with it set volumes.imageVolumeGate, without it use hostPath" $version) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The policies compare paths with those of pods, so there is one way to write each. */}}
{{- define "isolator.checkPaths" -}}
{{- $paths := dict -}}
{{- range $name, $path := .Values.paths }}{{ $_ := set $paths (printf "paths.%s" $name) $path }}{{ end -}}
{{- range $index, $path := (.Values.monitor | default dict).regionRoots -}}
{{- $_ := set $paths (printf "monitor.regionRoots[%d]" $index) $path -}}
{{- end -}}
{{- range $name, $path := $paths -}}
{{- if or (not (regexMatch "^(/[A-Za-z0-9_.-]+)+$" (toString $path))) (regexMatch "/[.][.]?(/|$)" (toString $path)) -}}
{{- fail (printf "%s is %q: accepted is an absolute path of letters, digits, '-', '_' and '.', without a slash at its end" $name (toString $path)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "isolator.checkLevel" -}}
{{- range $key, $value := .given -}}
{{- $path := printf "%s%s" $.above $key -}}
{{- /* null is how a value of an earlier release is taken back. */ -}}
{{- if not (or (hasKey $.tree $key) (kindIs "invalid" $value)) -}}
{{- fail (printf "%s is not a value of this chart%s" $path (include "isolator.likely" (dict "path" $path "paths" $.paths))) -}}
{{- end -}}
{{- $below := get $.tree $key -}}
{{- if kindIs "map" $below -}}
{{- if kindIs "map" $value -}}
{{- include "isolator.checkLevel" (dict "given" $value "tree" $below "above" (printf "%s." $path) "paths" $.paths) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- fail (printf "%s is %v: accepted is a map with the keys %s" $path $value (keys $below | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Every group of values is there, and every switch that is on by default: one that is missing would be off without a word.
Of no template it is known that it is rendered first, so each begins with this: otherwise helm would say `nil pointer
evaluating interface {}.enabled`.
*/}}
{{- define "isolator.checkWhole" -}}
{{- include "isolator.checkGroups" (dict "given" .Values "tree" (.Files.Get "known.json" | fromJson).tree "above" "") -}}
{{- end -}}

{{- define "isolator.checkGroups" -}}
{{- range $key, $below := .tree -}}
{{- if or (kindIs "map" $below) (eq (toString $below) "on") -}}
{{- $path := printf "%s%s" $.above $key -}}
{{- $value := get $.given $key -}}
{{- if or (not (hasKey $.given $key)) (kindIs "invalid" $value) -}}
{{- fail (printf "%s is missing: null does not take its place, and --reuse-values brings the old chart's values and none of this one's; use --reset-then-reuse-values" $path) -}}
{{- end -}}
{{- if kindIs "map" $value -}}
{{- include "isolator.checkGroups" (dict "given" $value "tree" $below "above" (printf "%s." $path)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* ": did you mean X?" for the known path that shares most pairs of letters with the given one. */}}
{{- define "isolator.likely" -}}
{{- $wanted := lower .path | replace "-" "" | replace "_" "" -}}
{{- $best := dict "score" 0 "path" "" -}}
{{- range $candidate := .paths -}}
{{- $text := lower $candidate -}}
{{- $shared := 0 -}}
{{- range $i := until (int (sub (len $wanted) 1)) -}}
{{- if contains (substr $i (int (add $i 2)) $wanted) $text -}}
{{- $shared = add1 $shared -}}
{{- end -}}
{{- end -}}
{{- $score := div (mul 2000 $shared) (add (len $wanted) (len $text) 1) -}}
{{- if gt (int $score) (int $best.score) -}}
{{- $_ := set $best "score" $score -}}
{{- $_ := set $best "path" $candidate -}}
{{- end -}}
{{- end -}}
{{- if gt (int $best.score) 500 -}}: did you mean {{ $best.path }}?{{- else -}}; the chart's README lists all values{{- end -}}
{{- end -}}

{{/*
Keys of the upstream chart that have nothing to do here. With upstream's default, as in a copy of its values.yaml, a key is
dropped; with another value someone expects an effect.
*/}}
{{- define "isolator.retired" -}}
paths.hostInstallBase:
  default: /usr/local
  say: it had no effect in the upstream chart; the directory on the node is paths.hostDir
tls.patch.enabled:
  default: true
  say: the webhook makes and renews its certificate itself; use tls.existingSecret and tls.caBundle to bring one
tls.patch.image:
  default: jettech/kube-webhook-certgen:v1.5.2
  say: there is no certificate job any more, the webhook makes and renews its certificate itself; remove it
tls.patch.imageNew:
  default: liangjw/kube-webhook-certgen:v1.1.1
  say: there is no certificate job any more, the webhook makes and renews its certificate itself; remove it
tls.patch.runAsUser:
  default: 2000
  say: there is no certificate job any more, the webhook makes and renews its certificate itself; remove it
tls.patch.nodeSelector:
  default: {}
  say: there is no certificate job any more, the webhook makes and renews its certificate itself; remove it
tls.patch.tolerations:
  default: []
  say: there is no certificate job any more, the webhook makes and renews its certificate itself; remove it
monitor.resyncInterval:
  default: 5m
  say: the monitor follows the API server's watch and removes nothing on the node, so there is no interval; remove it
image.repository:
  bad: projecthami/kai-resource-isolator
  say: that is the upstream chart's image, which has none of this chart's programs; name a prefix of this chart's images
{{- end -}}

{{- define "isolator.checkRetired" -}}
{{- range $path, $rule := include "isolator.retired" . | fromYaml -}}
{{- $parts := splitList "." $path -}}
{{- $name := last $parts -}}
{{- $parent := $.Values -}}
{{- range initial $parts -}}
{{- $parent = ternary (get $parent .) dict (and (kindIs "map" $parent) (kindIs "map" (get $parent .))) -}}
{{- end -}}
{{- if hasKey $parent $name -}}
{{- $value := get $parent $name -}}
{{- if hasKey $rule "bad" -}}
{{- if eq (toJson $value) (toJson $rule.bad) -}}
{{- fail (printf "%s is %v: %s" $path $value $rule.say) -}}
{{- end -}}
{{- else -}}
{{- if not (or (kindIs "invalid" $value) (eq (toJson $value) (toJson $rule.default))) -}}
{{- fail (printf "%s is retired: %s" $path $rule.say) -}}
{{- end -}}
{{- $_ := unset $parent $name -}}
{{- if and (eq (len $parts) 3) (eq (len $parent) 0) -}}
{{- $_ := unset (get $.Values (first $parts)) (index $parts 1) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
