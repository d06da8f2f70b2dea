"""KAI-Scheduler as a pod meets it: its admission, and what its binder leaves for the node.

Sources: KAI v0.17, pkg/admission/webhook/v1alpha2/{gpusharing,hamicore,runtimeenforcement} and pkg/binder/plugins/
{gpusharing,hamicore}. The arithmetic is `isolator_core.portion`.
"""

import copy
import secrets
import string

from tests.node.objects import Api, Json

from isolator_core import portion

CONFIG_MAP_ANNOTATION = "runai/shared-gpu-configmap"
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"


def fraction_container(pod: Json) -> tuple[str, Json]:
    """Index and container that KAI gives the GPU: the one named by annotation, init containers first, or the first."""
    spec = pod["spec"]
    name = pod["metadata"]["annotations"].get("gpu-fraction-container-name")
    if name is None:
        return "0", spec["containers"][0]
    candidates = [(f"i{index}", item) for index, item in enumerate(spec.get("initContainers", []))]
    candidates += [(f"{index}", item) for index, item in enumerate(spec["containers"])]
    return next((index, item) for index, item in candidates if item["name"] == name)


def admit(pod: Json, *, hamicore: bool) -> Json:
    """KAI's mutating admission: ConfigMap references, volume and runtime class. Run again, it changes nothing."""
    pod = copy.deepcopy(pod)
    annotations = pod["metadata"]["annotations"]
    if CONFIG_MAP_ANNOTATION not in annotations:
        random = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(7))
        annotations[CONFIG_MAP_ANNOTATION] = f"{pod['metadata']['name']}-{random}-shared-gpu"
    index, container = fraction_container(pod)
    name = f"{annotations[CONFIG_MAP_ANNOTATION]}-{index}"
    for variable in ("NVIDIA_VISIBLE_DEVICES", "RUNAI_NUM_OF_GPUS", "GPU_PORTION"):
        _set(container, variable, {"configMapKeyRef": {"name": name, "key": variable}})
    if hamicore:
        _set(container, LIMIT, {"configMapKeyRef": {"name": name, "key": LIMIT, "optional": True}})
    sources = container.setdefault("envFrom", [])
    direct = {"configMapRef": {"name": f"{name}-evar", "optional": False}}
    if direct not in sources:
        sources.append(direct)
    volumes = pod["spec"].setdefault("volumes", [])
    if all(volume["name"] != f"{name}-vol" for volume in volumes):
        volumes.append({"name": f"{name}-vol", "configMap": {"name": name}})
    pod["spec"].setdefault("runtimeClassName", "nvidia")
    return pod


def _set(container: Json, name: str, source: Json) -> None:
    """KAI replaces a variable of the same name, whatever it was (AddEnvVarToContainer)."""
    variables = container.setdefault("env", [])
    entry = {"name": name, "valueFrom": source}
    for position, present in enumerate(variables):
        if present["name"] == name:
            variables[position] = entry
            return
    variables.append(entry)


def bind(api: Api, pod: Json, node: Json, gpu: str, *, hamicore: bool) -> Json:
    """KAI's decision and bind: the pod with its node, and the ConfigMaps with what the container was given."""
    pod = copy.deepcopy(pod)
    label = int(node["metadata"]["labels"][portion.GPU_MEMORY_LABEL])
    annotations = pod["metadata"]["annotations"]
    if "gpu-fraction" in annotations:
        share = float(annotations["gpu-fraction"])
    else:
        share = portion.portion_of_memory(int(annotations["gpu-memory"]), portion.floored_card_mib(label))
    text = portion.portion_text(share)
    data = {"NVIDIA_VISIBLE_DEVICES": gpu, "RUNAI_NUM_OF_GPUS": text, "GPU_PORTION": text}
    if hamicore:
        data[LIMIT] = f"{portion.limit_mib(label, text)}m"
    index, _container = fraction_container(pod)
    name = f"{annotations[CONFIG_MAP_ANNOTATION]}-{index}"
    namespace = pod["metadata"]["namespace"]
    api.config_maps[namespace, name] = data
    api.config_maps[namespace, f"{name}-evar"] = {}
    pod["spec"]["nodeName"] = node["metadata"]["name"]
    return pod
