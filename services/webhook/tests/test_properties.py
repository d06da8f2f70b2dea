"""Whatever the pod: the patch applies, applied twice it is applied once, nothing else is touched, nothing is raised."""

import copy
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from isolator_webhook.basis import Known, NodeSoftware, Unknown
from isolator_webhook.options import LibraryImage, Options

PREFIX = "kai-resource-isolator"
PATHS = ["/data", "/etc", "/etc/ssl", "/usr/local/vgpu/limits", "/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload", "/"]
VOLUME_NAMES = ["data", f"{PREFIX}-lib", f"{PREFIX}-preload", f"{PREFIX}-limits-0", f"{PREFIX}-region-0"]
CONTAINER_NAMES = ["main", "side", "prepare"]

numbers = st.sampled_from(["0", "1", "4096", "0100", "18446744073709551615", "4Gi", "", "1e3"]) | st.text(max_size=6)
fractions = st.sampled_from(["0.5", ".25", "5e-1", "1", "0x1p-1", "NaN", "1e-9"]) | st.text(max_size=6)
LIMITS: list[dict[str, str]] = [
    {},
    {},
    {},
    {"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8"},
    {"gpu-fraction": "0.5", "kai.scheduler/container.main.gpu-memory.portion.limit": "0.8"},
    {"gpu-memory": "4096", "gpu-memory.limit": "8Gi"},
    {"gpu-memory.limit": "8Gi"},
    {"nvidia.com/container.main.gpu-memory.request": "512Mi", "nvidia.com/container.main.gpus.devices": "GPU-1,GPU-2"},
]
asked = st.fixed_dictionaries(
    {},
    optional={
        "gpu-memory": numbers,
        "gpu-fraction": fractions,
        "gpu-fraction-num-devices": numbers,
        "gpu-fraction-container-name": st.sampled_from(CONTAINER_NAMES),
        "runai/shared-gpu-configmap": st.sampled_from(["", "a-shared-gpu"]),
        f"{PREFIX}.io/gpu-cores": st.sampled_from(["30", "0"]),
        f"{PREFIX}.io/priority": st.sampled_from(["0", "2"]),
        "nvidia.com/container.main.gpu-memory.limit": st.sampled_from(["1Gi", "x"]),
        "nvidia.com/container.side.gpu-memory.limit": st.sampled_from(["512Mi"]),
        "mps": st.sampled_from(["true", "false"]),
        f"{PREFIX}.io/inject": st.sampled_from(["false", "true"]),
        f"{PREFIX}.io/request.0": st.text(max_size=5),
        f"{PREFIX}.io/request.i3": st.text(max_size=5),
        f"{PREFIX}.io/notice": st.text(max_size=5),
        "other/key~1": st.text(max_size=5),
    },
)
annotations = st.none() | st.builds(lambda found, limits: found | limits, asked, st.sampled_from(LIMITS))
sources = st.sampled_from(
    [
        {"emptyDir": {}},
        {"emptyDir": {"sizeLimit": "16Mi"}},
        {"hostPath": {"path": f"/var/lib/{PREFIX}/libvgpu.so", "type": "File"}},
        {"hostPath": {"path": "/", "type": ""}},
        {"configMap": {"name": "x", "defaultMode": 420}},
        {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}], "defaultMode": 420}},
        {"image": {"reference": "x"}},
    ]
)
volumes = st.lists(
    st.builds(lambda name, source: {"name": name} | source, st.sampled_from(VOLUME_NAMES), sources),
    max_size=4,
    unique_by=lambda volume: str(volume["name"]),
)
mounts = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(VOLUME_NAMES), "mountPath": st.sampled_from(PATHS)},
        optional={
            "readOnly": st.booleans(),
            "subPath": st.just("x"),
            "recursiveReadOnly": st.just("Disabled"),
            "bindMountOptions": st.just(["noexec"]),
        },
    ),
    max_size=3,
)
variables = st.lists(
    st.sampled_from(
        [
            {"name": "POD_UID", "value": "mine"},
            {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "1m"},
            {"name": "CUDA_DEVICE_MEMORY_LIMIT", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}},
            {"name": "A"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
            {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "1g"},
            {"name": "CUDA_DEVICE_MEMORY_LIMIT_11"},
        ]
    ),
    max_size=3,
)
containers = st.fixed_dictionaries(
    {"name": st.sampled_from(CONTAINER_NAMES)},
    optional={
        "env": st.none() | variables,
        "volumeMounts": st.none() | mounts,
        "resources": st.sampled_from(
            [
                {},
                {"limits": None},
                {"limits": {"nvidia.com/gpu": "1"}},
                {"limits": {"cpu": 1, "memory": "1Gi"}},
                {"limits": {"nvidia.com/gpumem": "9", "cpu": 1}, "requests": {"nvidia.com/gpumem": "9", "cpu": 1}},
                {"limits": {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 30}},
                {"limits": {"nvidia.com/gpumem-percentage": 50, "nvidia.com/priority": 0}},
            ]
        ),
        "securityContext": st.sampled_from([None, {}, {"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}]),
        "novelty": st.just({"x": [1]}),
    },
)
specs = st.fixed_dictionaries(
    {"containers": st.lists(containers, min_size=1, max_size=3)},
    optional={
        "initContainers": st.none() | st.lists(containers, max_size=2),
        "volumes": st.none() | volumes,
        "schedulerName": st.sampled_from(["kai-scheduler", "default-scheduler"]),
        "nodeSelector": st.just({"a": "b"}),
        "affinity": st.sampled_from([{}, {"nodeAffinity": {}}, None]),
        "novelty": st.just([1, None]),
    },
)
pods = st.builds(
    lambda found, spec: {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "a-"} | ({} if found is None else {"annotations": found}),
        "spec": spec,
    },
    annotations,
    specs,
)
choices = st.builds(
    Options,
    fraction_of=st.sampled_from(["card", "basis"]),
    hami_resources=st.sampled_from(["translate", "cap"]),
    pod_opt_out=st.booleans(),
    region=st.sampled_from(["emptyDir", "hostPath"]),
    library_image=st.sampled_from([None, LibraryImage("registry/library:1", "Always")]),
)
treatments = st.sampled_from(["default", "enforce", "exempt"])
softwares = st.lists(
    st.sampled_from([NodeSoftware("v1.36.1", "containerd://2.2.0", 3, "a"), NodeSoftware("v1.34.2", "", 1, "b")]),
    max_size=2,
    unique=True,
).map(tuple)
bases = st.builds(
    msgspec.structs.replace,
    st.sampled_from([Known(15360, 15360), Known(1, 1), Unknown("down")]),
    software=softwares,
)

OUR_VARIABLES = ("POD_UID", "CONTAINER_NAME", "CONTAINER_VGPU_MOUNT", "CUDA_DEVICE_MEMORY_LIMIT")


SHARES = [f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores", "priority")]
ASKING = ("gpu-memory", "gpu-fraction", "gpu-fraction-num-devices", "gpu-fraction-container-name",
          f"{PREFIX}.io/gpu-cores", f"{PREFIX}.io/priority")  # fmt: skip


def without_ours(pod: Any, before: Any, region: str) -> Any:
    """The pod less what the patch may change, so that what is left can be compared with what came in."""
    pod = copy.deepcopy(pod)
    translated = "gpumem" in str(before) or "gpucores" in str(before)
    annotations = pod["metadata"].get("annotations", {})
    for key in list(annotations):
        if key.startswith((f"{PREFIX}.io/request.", f"{PREFIX}.io/notice", f"{PREFIX}.io/preload")) or (
            translated and key in ASKING
        ):
            del annotations[key]
    if not annotations and not before["metadata"].get("annotations"):
        pod["metadata"].pop("annotations", None)
    spec = pod["spec"]
    spec["volumes"] = [volume for volume in spec.get("volumes") or () if not volume["name"].startswith(PREFIX)]
    for array in ("initContainers", "containers"):
        for position, container in enumerate(spec.get(array) or ()):
            given = before["spec"][array][position]
            container["volumeMounts"] = [
                mount for mount in container.get("volumeMounts") or () if not mount["name"].startswith(PREFIX)
            ]
            present = {variable["name"] for variable in given.get("env") or ()}
            container["env"] = [
                variable
                for variable in container.get("env") or ()
                if (variable["name"] in present or variable["name"] not in OUR_VARIABLES)
                and not (region == "hostPath" and variable["name"] == "POD_UID")
                and not variable["name"].startswith("CUDA_DEVICE_MEMORY_LIMIT_")
            ]
            for field in ("limits", "requests") if translated else ():
                for name in SHARES:
                    ((container.get("resources") or {}).get(field) or {}).pop(name, None)
    return pod


@settings(max_examples=300, deadline=None)
@given(pods, bases, choices, treatments)
def test_any_pod(world: Any, pod: Any, basis: Any, options: Options, treatment: Any) -> None:
    before = copy.deepcopy(pod)
    outcome = world.outcome_of(pod, basis, options, treatment)
    assert outcome.result in ("allowed", "patched", "denied"), outcome.message
    if outcome.result == "denied":
        assert outcome.message
        return
    after = world.admitted(pod, basis, options, treatment)
    assert pod == before
    if outcome.result == "allowed":
        assert after == pod
        return
    assert without_ours(after, pod, options.region) == without_ours(pod, pod, options.region)
    assert world.outcome_of(after, basis, options, treatment).operations == []
    assert world.outcome_of(world.defaulted(after), basis, options, treatment).operations == []


@settings(max_examples=200, deadline=None)
@given(pods, st.sampled_from([None, "nvidia", "kata"]), st.sampled_from(["audit", "enforce"]), st.booleans())
def test_any_pod_before_the_guard(world: Any, pod: Any, runtime: str | None, mode: Any, default: bool) -> None:
    pod["spec"]["runtimeClassName"] = runtime
    options = Options(guard=mode, nvidia_is_default_runtime=default)
    outcome = world.outcome_of(pod, Known(1, 1), options, "guard")
    assert outcome.result in ("allowed", "patched", "denied"), outcome.message
    if outcome.result == "denied":
        assert mode == "enforce"
        assert outcome.findings
        return
    after = world.admitted(pod, Known(1, 1), options, "guard")
    assert without_devices(after) == without_devices(pod)
    if mode == "audit":
        assert after == pod
    assert world.outcome_of(after, Known(1, 1), options, "guard").operations == []


def without_devices(pod: Any) -> Any:
    pod = copy.deepcopy(pod)
    for array in ("initContainers", "containers"):
        for container in pod["spec"].get(array) or ():
            env = container.get("env") or ()
            container["env"] = [variable for variable in env if variable["name"] != "NVIDIA_VISIBLE_DEVICES"]
    return pod
