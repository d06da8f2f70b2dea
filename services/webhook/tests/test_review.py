"""From the bytes of a review to the bytes of its answer."""

import asyncio
import base64
import json
import tracemalloc
from typing import Any

import pytest
import structlog

from isolator_webhook import review
from isolator_webhook.basis import AskBasis, Known, Unknown, always
from isolator_webhook.options import Options
from isolator_webhook.pod import PodSpec


def answer(document: Any, ask: AskBasis | None = None) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return json.loads(asyncio.run(review.answer(body, ask or always(Known(15360, 15360)), Options())).body)


def response(document: Any, ask: AskBasis | None = None) -> Any:
    found = answer(document, ask)
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert found["response"]["uid"] == document["request"]["uid"]
    return found["response"]


def test_patched(world: Any) -> None:
    found = response(world.review_of(world.a_pod({"gpu-memory": "4096"})))
    assert (found["allowed"], found["patchType"]) == (True, "JSONPatch")
    operations = json.loads(base64.b64decode(found["patch"]))
    assert {operation["op"] for operation in operations} == {"add"}
    assert "warnings" not in found
    assert "status" not in found
    assert found["auditAnnotations"] == {
        "shares": "main: 4096 MiB on 1 devices, by KAI's annotations",
        "basis": "15360 MiB",
    }


def test_notices_are_warnings_and_audited(world: Any) -> None:
    found = response(world.review_of(world.a_pod({"gpu-memory": "1"}, schedulerName="other")), always(Unknown("down")))
    (warning,) = found["warnings"]
    assert found["auditAnnotations"]["notices"] == warning
    assert found["auditAnnotations"]["basis"] == "unknown"


@pytest.mark.parametrize(
    "annotations",
    [
        None,
        {},
        {"other": "x"},
        {"gpu-memory": "4096", "kai-resource-isolator.io/inject": "false"},
        {"gpu-memory": "bad", "kai-resource-isolator.io/inject": "FALSE"},
    ],
)
def test_left_alone(world: Any, annotations: dict[str, str] | None) -> None:
    document = world.review_of(world.a_pod(annotations))
    assert response(document) == {"uid": document["request"]["uid"], "allowed": True}


@pytest.mark.parametrize("value", ["true", "", "no", "false ", "0"])
def test_only_false_opts_out(world: Any, value: str) -> None:
    pod = world.a_pod({"gpu-memory": "1", "kai-resource-isolator.io/inject": value})
    assert "patch" in response(world.review_of(pod))


def test_refused_with_the_reason_of_kai(world: Any) -> None:
    found = response(world.review_of(world.a_pod({"gpu-memory": "4Gi"})))
    assert found["allowed"] is False
    assert found["status"] == {
        "message": "gpu-memory annotation value must be a positive integer greater than 0",
        "reason": "Forbidden",
        "code": 403,
    }
    assert "patch" not in found


@pytest.mark.parametrize(
    "changes",
    [
        {"operation": "UPDATE"},
        {"operation": "DELETE", "object": None},
        {"operation": "CONNECT", "subResource": "exec"},
        {"subResource": "status"},
        {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}, "object": {"any": ["thing"]}},
        {"kind": {"group": "", "version": "v2", "kind": "Pod"}},
    ],
)
def test_other_operations_and_kinds_are_allowed_as_they_are(world: Any, changes: dict[str, Any]) -> None:
    document = world.review_of(world.a_pod({"gpu-memory": "bad"}), **changes)
    assert response(document) == {"uid": document["request"]["uid"], "allowed": True}


def test_dry_run_is_answered_the_same(world: Any) -> None:
    pod = world.a_pod({"gpu-memory": "1"})
    assert response(world.review_of(pod, dryRun=True)) == response(world.review_of(pod))


def test_fields_of_a_newer_kubernetes_are_kept(world: Any) -> None:
    pod = world.a_pod({"gpu-memory": "1"}, novelty={"deep": [1, {"x": None}]})
    pod["spec"]["containers"][0]["novelty"] = [1]
    after = world.admitted(pod)
    assert after["spec"]["novelty"] == {"deep": [1, {"x": None}]}
    assert after["spec"]["containers"][0]["novelty"] == [1]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["AdmissionReview"]),
        (b"{", ["AdmissionReview"]),
        (b"[]", ["AdmissionReview", "array"]),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', ["request"]),
        (b"\xff\xfe", ["AdmissionReview"]),
        (b'{"request": {"object": ' + b"[" * 100_000, ["AdmissionReview", "recursion"]),
    ],
)
def test_malformed(body: bytes, words: list[str]) -> None:
    with pytest.raises(review.Malformed) as malformed:
        answer(body)
    for word in words:
        assert word in str(malformed.value)


@pytest.mark.parametrize(
    ("kind", "version"), [("AdmissionReview", "admission.k8s.io/v1beta1"), ("ConversionReview", "admission.k8s.io/v1")]
)
def test_other_kinds_of_review_are_refused_by_name(world: Any, kind: str, version: str) -> None:
    document = world.review_of(world.a_pod()) | {"kind": kind, "apiVersion": version}
    with pytest.raises(
        review.Malformed, match=f"{kind} of {version}.*accepted is AdmissionReview of admission.k8s.io/v1"
    ):
        answer(document)


@pytest.mark.parametrize(
    ("pod", "word"),
    [
        ({"metadata": {"annotations": {"gpu-memory": 4096}}, "spec": {"containers": []}}, "$.metadata.annotations"),
        ({"metadata": {}, "spec": {}}, "containers"),
        (None, "null"),
        ([], "array"),
    ],
)
def test_a_pod_that_cannot_be_read_is_refused(world: Any, pod: Any, word: str) -> None:
    found = response(world.review_of(pod))
    assert found["allowed"] is False
    assert (found["status"]["code"], found["status"]["reason"]) == (400, "BadRequest")
    assert word in found["status"]["message"]


@pytest.mark.parametrize("before", [None, [], {"metadata": {}, "spec": {"ephemeralContainers": 5}}])
def test_a_former_pod_that_cannot_be_read_is_refused(world: Any, before: Any) -> None:
    pod = world.a_pod({"gpu-memory": "1"}, ephemeralContainers=[{"name": "debug"}])
    found = response(world.review_of(pod, operation="UPDATE", subResource="ephemeralcontainers", oldObject=before))
    assert found["allowed"] is False
    assert (found["status"]["code"], found["status"]["reason"]) == (400, "BadRequest")
    assert "the pod before cannot be read" in found["status"]["message"]


@pytest.mark.parametrize("name", ["Main", "", "a" * 64, "a b", "main\nmemory=none"])
def test_a_container_name_that_the_api_server_would_refuse(world: Any, name: str) -> None:
    found = response(world.review_of(world.a_pod({"gpu-memory": "1"}, containers=[{"name": name}])))
    assert (found["allowed"], found["status"]["code"]) == (False, 400)
    assert "container is" in found["status"]["message"]


def test_a_fault_of_ours_refuses_the_pod_and_leaves_a_trace(world: Any) -> None:
    async def broken(_spec: PodSpec) -> Known:
        raise RuntimeError("not foreseen")

    with structlog.testing.capture_logs() as logs:
        found = response(world.review_of(world.a_pod({"gpu-fraction": "0.5"})), broken)
    assert found["allowed"] is False
    assert (found["status"]["code"], found["status"]["reason"]) == (500, "InternalError")
    assert "not foreseen" not in found["status"]["message"]
    (error,) = [line for line in logs if line["event"] == "internal_error"]
    assert error["error_id"] in found["status"]["message"]
    assert error["exc_info"] is True


LONG = "0" * 100_000


@pytest.mark.parametrize(
    ("annotations", "more"),
    [
        ({"gpu-memory": "1", "runai/shared-gpu-configmap": f"{LONG}%d"}, {}),
        ({"gpu-fraction": f"0.5e{LONG}%d"}, {}),
        ({"gpu-memory": "1"}, {"volumeMounts": [{"name": "x", "mountPath": f"/{LONG}%d"}]}),
    ],
)
def test_long_texts_of_authors_are_not_kept(world: Any, annotations: dict[str, str], more: dict[str, Any]) -> None:
    """A cache of a thousand texts may hold a thousand of the longest that the API server takes."""
    document = json.dumps(world.review_of(world.a_pod(annotations, containers=[{"name": "main"} | more])))
    tracemalloc.start()
    try:
        for number in range(20):
            response(json.loads(document.replace("%d", "0" * number)))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 5 * len(LONG)
