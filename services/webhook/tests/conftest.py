"""Pods, KAI's admission and the API server's defaulting, played for the webhook's tests."""

import asyncio
import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonpatch
import msgspec
import pytest
import structlog

from isolator_webhook import review
from isolator_webhook.basis import Basis, Known, always
from isolator_webhook.options import Options, Treatment

Document = dict[str, Any]
T4 = Known(15360, 15360)


def review_of(pod: Any, **changes: Any) -> Document:
    request = {
        "uid": "8f1f1c4e-6b2b-4a5e-9a38-0f0f0f0f0f0f",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "name": "a",
        "object": pod,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | changes}


def outcome_of(
    pod: Document, basis: Basis = T4, options: Options | None = None, treatment: Treatment = "default"
) -> review.Outcome:
    request = review.decode(json.dumps(review_of(pod)).encode()).request
    return asyncio.run(review.outcome(request, always(basis), options or Options(), treatment))


def admitted(
    pod: Document, basis: Basis = T4, options: Options | None = None, treatment: Treatment = "default"
) -> Document:
    outcome = outcome_of(pod, basis, options, treatment)
    assert outcome.result in ("allowed", "patched"), outcome.message
    operations = json.loads(msgspec.json.encode(outcome.operations))
    return jsonpatch.apply_patch(json.loads(json.dumps(pod)), operations)  # type: ignore[no-any-return]


def defaulted(pod: Document) -> Document:
    """What the API server's defaulting adds to what the patch wrote (Kubernetes: pkg/apis/core/v1/defaults.go)."""
    pod = copy.deepcopy(pod)
    for volume in pod["spec"].get("volumes") or ():
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")
        if "projected" in volume:
            volume["projected"].setdefault("defaultMode", 420)
            for source in volume["projected"]["sources"]:
                for item in source.get("downwardAPI", {}).get("items", ()):
                    item["fieldRef"].setdefault("apiVersion", "v1")
    for container in (pod["spec"].get("initContainers") or []) + pod["spec"]["containers"]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        for variable in container.get("env") or ():
            if "fieldRef" in variable.get("valueFrom", {}):
                variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
    return pod


def after_kai(pod: Document, *, hamicore: bool) -> Document:
    """What KAI's admission makes of a pod (KAI: pkg/admission/webhook/v1alpha2/{gpusharing,hamicore})."""
    pod = copy.deepcopy(pod)
    annotations = pod["metadata"]["annotations"]
    name = annotations.get("gpu-fraction-container-name")
    arrays = (("i", pod["spec"].get("initContainers") or []), ("", pod["spec"]["containers"]))
    container, index = pod["spec"]["containers"][0], "0"
    for prefix, containers in reversed(arrays):
        for position, candidate in enumerate(containers):
            if candidate["name"] == name:
                container, index = candidate, f"{prefix}{position}"
    prefix = annotations.setdefault("runai/shared-gpu-configmap", f"{pod['metadata']['name']}-abcdefg-shared-gpu")
    config_map = f"{prefix}-{index}"

    def refer(variable: str, **extra: bool) -> None:
        entry = {
            "name": variable,
            "valueFrom": {"configMapKeyRef": {"name": config_map, "key": variable, **extra}},
        }
        env = container["env"] = container.get("env") or []
        for position, present in enumerate(env):
            if present["name"] == variable:
                env[position] = entry
                return
        env.append(entry)

    for variable in ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION"):
        refer(variable)
    if hamicore:
        refer("CUDA_DEVICE_MEMORY_LIMIT", optional=True)
    volumes = pod["spec"]["volumes"] = pod["spec"].get("volumes") or []
    if all(volume["name"] != f"{config_map}-vol" for volume in volumes):
        volumes.append({"name": f"{config_map}-vol", "configMap": {"name": config_map, "defaultMode": 420}})
    pod["spec"].setdefault("runtimeClassName", "nvidia")
    return pod


def a_pod(annotations: dict[str, str] | None = None, **spec: Any) -> Document:
    metadata: Document = {"name": "a", "namespace": "default"}
    if annotations is not None:
        metadata["annotations"] = annotations
    spec.setdefault("containers", [{"name": "main", "image": "pytorch"}])
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"schedulerName": "kai-scheduler"} | spec}


class World:
    """The functions above, as one fixture."""

    review_of = staticmethod(review_of)
    outcome_of = staticmethod(outcome_of)
    admitted = staticmethod(admitted)
    defaulted = staticmethod(defaulted)
    after_kai = staticmethod(after_kai)
    a_pod: Callable[..., Document] = staticmethod(a_pod)


@pytest.fixture(autouse=True)
def logs_of_this_test() -> Iterator[None]:
    """A test that runs the program configures structlog with that test's standard error: undo it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def world() -> type[World]:
    return World
