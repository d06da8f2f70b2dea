"""KAI as the demo plays it: the references of its admission, the numbers of its bind."""

import copy

import pytest
from tests.demo import kai
from tests.node import environment
from tests.node.objects import Api, Json

GPU = "GPU-1"


def node(label: int) -> Json:
    return {"metadata": {"name": "node", "labels": {"nvidia.com/gpu.memory": str(label)}}}


def pod(**annotations: str) -> Json:
    return {
        "metadata": {"name": "pod", "namespace": "team", "uid": "u", "annotations": annotations},
        "spec": {
            "initContainers": [{"name": "fetch", "image": "x"}],
            "containers": [{"name": "main", "image": "x"}, {"name": "other", "image": "x"}],
        },
    }


def given(manifest: Json, label: int, *, hamicore: bool) -> dict[str, str]:
    """Environment that the fraction container gets from KAI."""
    api = Api()
    bound = kai.bind(api, kai.admit(manifest, hamicore=hamicore), node(label), GPU, hamicore=hamicore)
    assert bound["spec"]["nodeName"] == "node"
    _index, container = kai.fraction_container(bound)
    return environment.resolve(api, bound, container)


# Source: KAI v0.17, the formulas named in isolator_core.portion.
@pytest.mark.parametrize(
    ("annotations", "label", "portion", "limit"),
    [
        ({"gpu-memory": "4096"}, 15360, "0.27", "4147m"),
        ({"gpu-memory": "100"}, 143771, "0.01", "1437m"),
        ({"gpu-memory": "8192"}, 81559, "0.11", "8971m"),
        ({"gpu-fraction": "0.5"}, 15360, "0.50", "7680m"),
        ({"gpu-fraction": "0.335"}, 15360, "0.34", "5222m"),
    ],
)
def test_what_the_fraction_container_is_given(
    annotations: dict[str, str], label: int, portion: str, limit: str
) -> None:
    expected = {"NVIDIA_VISIBLE_DEVICES": GPU, "RUNAI_NUM_OF_GPUS": portion, "GPU_PORTION": portion}
    manifest = pod(**annotations)
    assert given(manifest, label, hamicore=False) == expected
    assert given(manifest, label, hamicore=True) == {**expected, "CUDA_DEVICE_MEMORY_LIMIT": limit}


@pytest.mark.parametrize(("name", "index"), [(None, "0"), ("main", "0"), ("other", "1"), ("fetch", "i0")])
def test_only_the_fraction_container_is_changed(name: str | None, index: str) -> None:
    named = {} if name is None else {"gpu-fraction-container-name": name}
    admitted = kai.admit(pod(**{"gpu-memory": "4096"}, **named), hamicore=True)
    assert kai.fraction_container(admitted)[0] == index
    containers = admitted["spec"]["initContainers"] + admitted["spec"]["containers"]
    changed = [container["name"] for container in containers if "env" in container]
    assert changed == [name or "main"]
    prefix = admitted["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    assert admitted["spec"]["volumes"] == [
        {"name": f"{prefix}-{index}-vol", "configMap": {"name": f"{prefix}-{index}"}}
    ]
    assert admitted["spec"]["runtimeClassName"] == "nvidia"


def test_admission_again_changes_nothing_and_never_its_input() -> None:
    manifest = pod(**{"gpu-memory": "4096"})
    before = copy.deepcopy(manifest)
    once = kai.admit(manifest, hamicore=True)
    assert manifest == before
    assert kai.admit(once, hamicore=True) == once


def test_a_literal_limit_is_replaced() -> None:
    manifest = pod(**{"gpu-memory": "4096"})
    manifest["spec"]["containers"][0]["env"] = [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "4096m"}]
    assert given(manifest, 15360, hamicore=True)["CUDA_DEVICE_MEMORY_LIMIT"] == "4147m"
    assert given(manifest, 15360, hamicore=False)["CUDA_DEVICE_MEMORY_LIMIT"] == "4096m"
