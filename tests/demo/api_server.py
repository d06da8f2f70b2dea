"""The API server as a pod meets it at its creation: defaults, mutating webhooks in order, reinvocation."""

import base64
import copy
import json
import ssl
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
import jsonpatch
from tests.node.objects import Json

WEBHOOK_SECONDS = 10.0


class Refused(Exception):
    """The pod is not created; the text is what its author sees."""


@dataclass(frozen=True)
class Webhook:
    """Our MutatingWebhookConfiguration: failurePolicy Fail, reinvocationPolicy IfNeeded."""

    url: str
    ca: ssl.SSLContext


def created(manifest: Json) -> Json:
    """A manifest with what the API server fills in before admission."""
    pod = copy.deepcopy(manifest)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    pod["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now}
    return defaulted(pod)


def defaulted(pod: Json) -> Json:
    """The defaults of what the demo's pods and webhooks leave out (k8s.io/kubernetes: pkg/apis/core/v1/defaults.go)."""
    pod = copy.deepcopy(pod)
    spec = pod["spec"]
    for key, value in (("restartPolicy", "Always"), ("dnsPolicy", "ClusterFirst"), ("securityContext", {})):
        spec.setdefault(key, value)
    for volume in spec.get("volumes", []):
        for kind in ("projected", "configMap", "downwardAPI"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", 0o644)
        for source in volume.get("projected", {}).get("sources", []):
            for item in source.get("downwardAPI", {}).get("items", []):
                item["fieldRef"].setdefault("apiVersion", "v1")
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")
    for container in spec.get("initContainers", []) + spec["containers"]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("resources", {})
        for entry in container.get("env", []):
            if "fieldRef" in entry.get("valueFrom", {}):
                entry["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    return pod


def admit(manifest: Json, ours: Webhook | None, kai: Callable[[Json], Json]) -> Json:
    """The pod as stored: our webhook, KAI's (the order of their configurations' names), ours again after KAI's change.

    `ours` is None where the isolator is not installed. Raises Refused.
    """
    pod = created(manifest)
    if ours is None:
        return defaulted(kai(pod))
    pod = mutate(ours, pod)
    after_kai = defaulted(kai(pod))
    return mutate(ours, after_kai) if after_kai != pod else pod


def mutate(webhook: Webhook, pod: Json) -> Json:
    """Ask the webhook about the pod and apply the patch of its answer."""
    request_uid = str(uuid.uuid4())
    metadata = pod["metadata"]
    pods = {"group": "", "version": "v1"}
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": request_uid,
            "kind": {**pods, "kind": "Pod"},
            "resource": {**pods, "resource": "pods"},
            "requestKind": {**pods, "kind": "Pod"},
            "requestResource": {**pods, "resource": "pods"},
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "operation": "CREATE",
            "userInfo": {"username": "demo", "groups": ["system:authenticated"]},
            "object": pod,
            "oldObject": None,
            "dryRun": False,
            "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
        },
    }
    try:
        answer = httpx.post(webhook.url, json=review, verify=webhook.ca, timeout=WEBHOOK_SECONDS, trust_env=False)
        answer.raise_for_status()
        response = answer.json()["response"]
    except (httpx.HTTPError, KeyError, json.JSONDecodeError) as error:
        raise Refused(f"Internal error occurred: failed calling webhook: {error!r}") from error
    if response["uid"] != request_uid:
        raise Refused("Internal error occurred: the webhook answered another review")
    if not response["allowed"]:
        raise Refused(f"admission webhook denied the request: {response.get('status', {}).get('message')}")
    if "patch" not in response:
        return pod
    try:
        patched = jsonpatch.apply_patch(pod, json.loads(base64.b64decode(response["patch"])))
    except (ValueError, jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise Refused(f"Internal error occurred: the webhook's patch does not apply: {error}") from error
    return defaulted(patched)
