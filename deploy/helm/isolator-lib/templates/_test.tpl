{{/* `helm test`: a pod that asks for a share goes through admission, as a dry run, and must come out with its mounts. */}}

{{- define "isolator.test" -}}
{{- $part := dict "root" . "part" "webhook" -}}
{{- $name := printf "%s-test" (include "isolator.fullname" .) -}}
{{- $hook := dict "helm.sh/hook" "test" "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded" -}}
{{- $access := dict "helm.sh/hook" "test" "helm.sh/hook-weight" "-1" "helm.sh/hook-delete-policy" "before-hook-creation,hook-succeeded" -}}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- include "isolator.metadata" (dict "root" . "part" "test" "name" $name "annotations" $access) | nindent 2 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  {{- include "isolator.metadata" (dict "root" . "part" "test" "name" $name "cluster" true "annotations" $access) | nindent 2 }}
  namespace: {{ .Values.test.namespace }}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  {{- include "isolator.metadata" (dict "root" . "part" "test" "name" $name "cluster" true "annotations" $access) | nindent 2 }}
  namespace: {{ .Values.test.namespace }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}}
subjects:
  - {kind: ServiceAccount, name: {{ $name }}, namespace: {{ include "isolator.namespace" . }}}
---
apiVersion: v1
kind: Pod
metadata:
  {{- include "isolator.metadata" (dict "root" . "part" "test" "name" $name "annotations" $hook) | nindent 2 }}
spec:
  restartPolicy: Never
  serviceAccountName: {{ $name }}
  automountServiceAccountToken: true
  {{- with (.Values.global | default dict).imagePullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - {{ if kindIs "string" . }}{{ dict "name" . | toJson }}{{ else }}{{ toJson . }}{{ end }}
    {{- end }}
  {{- end }}
  {{- with .Values.webhook.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.webhook.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: test
      image: {{ include "isolator.image" $part | quote }}
      imagePullPolicy: {{ include "isolator.pullPolicy" $part }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      env:
        - {name: TEST_NAMESPACE, value: {{ .Values.test.namespace | quote }}}
        - {name: LIBRARY, value: {{ include "isolator.libraryMount" . | quote }}}
      command: [/opt/isolator/bin/python, -c]
      args:
        - |
          import json, os, ssl, sys, urllib.error, urllib.request

          account = "/var/run/secrets/kubernetes.io/serviceaccount/"
          host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
          server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
          metadata = {"generateName": "isolator-test-", "annotations": {"gpu-memory": "1024"}}
          containers = [{"name": "main", "image": "none.invalid/none"}]
          pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
          namespace = os.environ["TEST_NAMESPACE"]
          request = urllib.request.Request(
              f"{server}/api/v1/namespaces/{namespace}/pods?dryRun=All", data=json.dumps(pod).encode(), method="POST",
              headers={"Authorization": "Bearer " + open(account + "token").read(), "Content-Type": "application/json"})
          context = ssl.create_default_context(cafile=account + "ca.crt")
          try:
              answer = json.load(urllib.request.urlopen(request, context=context, timeout=30))
          except urllib.error.HTTPError as error:
              sys.exit(f"a pod with gpu-memory was refused: {json.load(error)['message']}")
          mounted = {mount["mountPath"] for mount in answer["spec"]["containers"][0].get("volumeMounts", [])}
          missing = {"/etc/ld.so.preload", os.environ["LIBRARY"]} - mounted
          if missing:
              sys.exit(f"a pod with gpu-memory in namespace {namespace} was admitted without {', '.join(sorted(missing))}")
          print("a pod with gpu-memory is admitted with its limit")
{{- end -}}
