"""Mutating webhooks of the tests themselves: another party's admission in front of or behind the project's own."""

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonpatch
from tests.cluster import https
from tests.cluster.client import Cluster, Object
from tests.cluster.control_plane import ControlPlane

HOST = "localhost"


def _answer(change: Callable[[Object], Object]) -> https.Answer:
    def answer(_path: str, review: Object) -> Object:
        pod = review["request"]["object"]
        patch = jsonpatch.make_patch(pod, change(pod)).to_string().encode()
        response = {"uid": review["request"]["uid"], "allowed": True, "patchType": "JSONPatch"}
        response["patch"] = base64.b64encode(patch).decode()
        return {key: review[key] for key in ("apiVersion", "kind")} | {"response": response}

    return answer


@contextmanager
def mutating_webhook(
    cluster: Cluster,
    plane: ControlPlane,
    directory: Path,
    name: str,
    change: Callable[[Object], Object],
    condition: str,
) -> Iterator[None]:
    """Have pods at creation changed by `change`, where the CEL `condition` holds, for the time of a block.

    The API server calls mutating webhooks in the order of their configurations' names. `directory` is empty.
    """
    with https.serving(plane.network, "127.0.0.1", HOST, directory, _answer(change)) as served:
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
        webhook: Object = {
            "name": f"{name}.tests.example",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "clientConfig": {"url": f"https://{HOST}:{served.port}/", "caBundle": served.ca_bundle},
            "rules": [rule],
            "matchConditions": [{"name": "of-this-test", "expression": condition}],
        }
        configuration: Object = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": name},
            "webhooks": [webhook],
        }
        try:
            cluster.create(configuration).ok()
            yield
        finally:
            cluster.delete(configuration)
