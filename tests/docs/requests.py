"""Writes docs/requests.md by asking the code itself: `python -m tests.docs.requests`."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from isolator_core import names, portion
from isolator_webhook import manifest, review
from isolator_webhook.basis import Basis, Known, Unknown, always
from isolator_webhook.options import Options, Treatment

PAGE = Path(__file__).parents[2] / "docs" / "requests.md"
T4 = Known(15360, 15360)
CONTAINER = "nvidia.com/container."
PORTION_LIMIT = "kai.scheduler/container.main.gpu-memory.portion.limit"
OURS = names.ANNOTATION_PREFIX
DEBUG_VARIABLES = ("NVIDIA_VISIBLE_DEVICES", "CONTAINER_NAME", names.LIMIT_KEY)
ON_THE_NODE = Options(region="hostPath")

Case = tuple[dict[str, str], dict[str, Any]]


def pod_of(annotations: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    """A pod of two containers."""
    content = {"schedulerName": "kai-scheduler", "containers": [{"name": "main"}, {"name": "side"}]} | spec
    metadata: dict[str, Any] = {"name": "training"} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": content}


def outcome_of(pod: dict[str, Any], basis: Basis, options: Options, treatment: Treatment) -> review.Outcome:
    """What the webhook does about a pod."""
    body = json.dumps(manifest.review_of(pod)).encode()
    return asyncio.run(review.outcome(review.decode(body).request, always(basis), options, treatment))


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _asked(annotations: dict[str, str], spec: dict[str, Any]) -> str:
    said = [_code(f'{key}: "{value}"') for key, value in annotations.items()]
    for array in ("initContainers", "containers"):
        for container in spec.get(array, ()):
            for key, value in container.get("resources", {}).get("limits", {}).items():
                said.append(f"{container['name']}: limit {_code(f'{key}: {value}')}")
    said += [_code(f"{key}: {value}") for key, value in spec.items() if isinstance(value, str)]
    return "<br>".join(said) or "nothing"


def _given(pod: dict[str, Any], outcome: review.Outcome) -> str:
    if outcome.result == "denied":
        return f"refused: {outcome.message}"
    if outcome.result == "allowed":
        return f"left as it is ({outcome.reason.replace('_', ' ')})"
    after = manifest.apply(pod, outcome.operations)
    lines = []
    for key, value in after["metadata"]["annotations"].items():
        if key.startswith(names.REQUEST_ANNOTATION):
            lines.append(_code(" ".join(value.split())))
        elif key not in pod["metadata"].get("annotations", {}) and key != names.NOTICE_ANNOTATION:
            lines.append(f"now {_code(f'{key}: {value}')}")
    for array in ("initContainers", "containers"):
        for container in after["spec"].get(array, ()):
            for variable in container.get("env", ()):
                if variable["name"] == names.LIMIT_KEY:
                    lines.append(f"{container['name']}: {_code(names.LIMIT_KEY + '=' + variable['value'])}")
    return "<br>".join(lines)


def table(
    cases: Iterable[Case],
    basis: Basis = T4,
    options: Options | None = None,
    treatment: Treatment = "default",
) -> list[str]:
    """A Markdown table of cases."""
    lines = ["| the pod says | its containers get | its author is told |", "|---|---|---|"]
    for annotations, spec in cases:
        pod = pod_of(annotations, spec)
        outcome = outcome_of(pod, basis, options or Options(), treatment)
        told = "<br>".join(outcome.notices) or "–"
        lines.append(f"| {_asked(annotations, spec)} | {_given(pod, outcome)} | {told} |")
    return [*lines, ""]


def limited(name: str, **limits: Any) -> dict[str, Any]:
    """A container with HAMi's resources."""
    named = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in limits.items()}
    return {"name": name, "resources": {"limits": named}}


def arithmetic() -> list[str]:
    """What KAI makes of requests on cards of several sizes."""
    labels = (15360, 24564, 40960, 81559, 143771)
    lines = ["| request | " + " | ".join(f"{label} MiB" for label in labels) + " |", "|---" * (len(labels) + 1) + "|"]
    for memory in (100, 1024, 4096, 8192):
        cells = []
        for label in labels:
            text = portion.portion_text(portion.portion_of_memory(memory, portion.floored_card_mib(label)))
            cells.append(f"{text}, {portion.limit_mib(label, text)} MiB")
        lines.append(f'| `gpu-memory: "{memory}"` | ' + " | ".join(cells) + " |")
    for fraction in (0.25, 0.333, 0.995, 0.996):
        text = portion.portion_text(fraction)
        cells = [f"{text}, {portion.limit_mib(label, text)} MiB" for label in labels]
        lines.append(f'| `gpu-fraction: "{fraction}"` | ' + " | ".join(cells) + " |")
    return [*lines, ""]


def _yaml(document: Any) -> list[str]:
    return ["```yaml", manifest.write(document, is_json=False).rstrip(), "```", ""]


def _admitted(options: Options) -> dict[str, Any]:
    pod = pod_of({"gpu-fraction": "0.25"}, {"containers": [{"name": "main", "image": "pytorch"}]})
    after: dict[str, Any] = manifest.apply(pod, outcome_of(pod, T4, options, "default").operations)
    return after


def whole_pod() -> list[str]:
    """One pod as it comes out."""
    return _yaml(_admitted(Options()))


def otherwise(options: Options) -> list[str]:
    """The parts of that pod that come out otherwise."""
    usual, chosen = _admitted(Options()), _admitted(options)

    def differing(*path: Any) -> Any:
        old, new = usual, chosen
        for step in path:
            old, new = old[step], new[step]
        return [one for one in new if one not in old] if isinstance(new, list) else new

    main = ("spec", "containers", 0)
    container = {key: found for key in ("volumeMounts", "env") if (found := differing(*main, key))}
    annotations = {key: value for key, value in differing("metadata", "annotations").items()
                   if usual["metadata"]["annotations"].get(key) != value}  # fmt: skip
    spec = {"containers": [{"name": "main"} | container], "volumes": differing("spec", "volumes")}
    return _yaml({"metadata": {"annotations": annotations}, "spec": spec})


def debugging(options: Options) -> list[str]:
    """A table of debug containers beside a pod with a share for `main`."""
    lines = ["| `kubectl debug` | the debug container gets | its user is told |", "|---|---|---|"]
    pod = pod_of({"gpu-memory": "4096"}, {})
    before = manifest.apply(pod, outcome_of(pod, T4, options, "default").operations)
    for target in ("main", "side", ""):
        added = {"name": "debugger"} | ({"targetContainerName": target} if target else {})
        after = {**before, "spec": {**before["spec"], "ephemeralContainers": [added]}}
        asked = manifest.review_of(after)
        asked["request"] |= {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": before}
        request = review.decode(json.dumps(asked).encode()).request
        outcome = asyncio.run(review.outcome(request, always(T4), options))
        (debugger,) = manifest.apply(after, outcome.operations)["spec"]["ephemeralContainers"]
        given = [_code(f"{one['name']}={one['value']}") for one in debugger["env"] if one["name"] in DEBUG_VARIABLES]
        if "volumeMounts" in debugger:
            given.insert(0, f"the mounts of {target}")
        said = f"`--target={target}`" if target else "without a target"
        lines.append(f"| {said} | {'<br>'.join(given)} | {'<br>'.join(outcome.notices) or '–'} |")
    return [*lines, ""]


def page() -> str:
    """The whole page."""
    no_basis = Unknown("there is no GPU node")
    lines = [
        "# Ways to ask for a share",
        "",
        "Made by `python -m tests.docs.requests` from what the webhook answers; a test compares the two. The pods have "
        "two containers, `main` and `side`, and KAI's scheduler unless another is named; the cluster's GPUs have "
        "15,360 MiB.",
        "",
        "The second column is the container's `request` file, its lines in a row, and what else changes.",
        "",
        "## KAI's annotations",
        "",
        "Both are for each device; `gpu-memory` is MiB. The first container gets the GPU unless another is named, "
        "and init containers are looked through first.",
        "",
        *table(
            [
                ({"gpu-memory": "4096"}, {}),
                ({"gpu-fraction": "0.25"}, {}),
                ({"gpu-memory": "4096", "gpu-fraction-num-devices": "2"}, {}),
                ({"gpu-memory": "4096", "gpu-fraction-container-name": "side"}, {}),
                (
                    {"gpu-memory": "4096", "gpu-fraction-container-name": "prepare"},
                    {"initContainers": [{"name": "prepare"}]},
                ),
            ]
        ),
        "Numbers mean what KAI makes of them, and what KAI refuses is refused with KAI's words:",
        "",
        *table(
            [({"gpu-memory": value}, {}) for value in ("0100", "4Gi", "4096m", "1e3", "0", "18446744073709551615")]
            + [({"gpu-fraction": value}, {}) for value in (".5", "5e-1", "0.5m", "1", "NaN", "0x1p-1")]
            + [
                ({"gpu-memory": "1", "gpu-fraction": "0.5"}, {}),
                ({"gpu-fraction-num-devices": "2"}, {}),
                ({"gpu-memory": "1", "gpu-fraction-container-name": "other"}, {}),
                ({"gpu-fraction": "0.5"}, {"containers": [limited("main", gpu=1)]}),
            ]
        ),
        "Shares that are given, with a word to the author:",
        "",
        *table(
            [
                ({"gpu-fraction": "0.004"}, {}),
                ({"gpu-fraction": "0.996"}, {}),
                ({"gpu-memory": "15300"}, {}),
                ({"gpu-memory": "15360"}, {}),
                ({"gpu-memory": "4096"}, {"schedulerName": "default-scheduler"}),
                ({"gpu-memory": "4096"}, {"nodeName": "node-1"}),
            ]
        ),
        "Where no basis is known:",
        "",
        *table([({"gpu-fraction": "0.25"}, {})], no_basis),
        "With `--fraction-of basis` a fraction is also at most what it is of the basis:",
        "",
        *table([({"gpu-fraction": "0.25"}, {})], T4, Options(fraction_of="basis")),
        "## What KAI makes of it",
        "",
        "KAI's scheduler turns a request into a portion of two decimals, and its binder that into a limit, which it "
        "leaves in a ConfigMap (KAI: gpu_sharing_node_info.go, hami_core.go). The smaller of that limit and the most "
        "that the request can mean on the card is enforced.",
        "",
        *arithmetic(),
        "## A limit above what is reserved",
        "",
        "From 0.18 on KAI places a container by its request and lets it use up to its limit, which is what is enforced."
        " `gpu-fraction.limit` and `gpu-memory.limit` are what later versions turn into annotations of the container. "
        "Where KAI's hamicore plugin writes `CUDA_DEVICE_MEMORY_LIMIT`, it does so from the request, and that holds.",
        "",
        *table(
            [
                ({"gpu-fraction": "0.5", PORTION_LIMIT: "0.8"}, {}),
                ({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8"}, {}),
                ({"gpu-memory": "4096", "gpu-memory.limit": "8Gi"}, {}),
                ({"gpu-fraction": "0.5", PORTION_LIMIT: "0.5"}, {}),
                ({"gpu-fraction": "0.5", PORTION_LIMIT.replace("main", "side"): "0.8"}, {}),
                ({"gpu-memory": "4096", PORTION_LIMIT: "0.8"}, {}),
                ({"gpu-memory": "4096", "gpu-memory.limit": "8192"}, {}),
            ]
        ),
        "## Cores and priority",
        "",
        "Beside a share, or for the one container with whole GPUs:",
        "",
        *table(
            [
                ({"gpu-memory": "4096", f"{OURS}gpu-cores": "30"}, {}),
                ({"gpu-memory": "4096", f"{OURS}priority": "0"}, {}),
                ({f"{OURS}gpu-cores": "30"}, {"containers": [limited("main", gpu=2)]}),
                ({f"{OURS}gpu-cores": "30"}, {}),
                ({"gpu-memory": "4096", f"{OURS}gpu-cores": "0"}, {}),
            ]
        ),
        "## Annotations of one container each",
        "",
        "As KAI reads them from 0.18; the limit counts, or the request alone. KAI itself gives a share to one container"
        " of a pod. `….gpus.devices`, the GPUs that were given, is for KAI's binder to write. `--kai-reads-containers` "
        "ends the notice.",
        "",
        *table(
            [
                ({f"{CONTAINER}main.gpu-memory.limit": "5Gi"}, {}),
                (
                    {
                        f"{CONTAINER}main.gpu-memory.request": "2Gi",
                        f"{CONTAINER}main.gpu-memory.limit": "4Gi",
                        f"{CONTAINER}side.gpu-memory.limit": "1500M",
                    },
                    {},
                ),
                ({f"{CONTAINER}main.gpu-memory.limit": "5"}, {}),
                ({f"{CONTAINER}other.gpu-memory.limit": "5Gi"}, {}),
                ({"gpu-memory": "5120", f"{CONTAINER}main.gpu-memory.request": "4Gi"}, {}),
            ]
        ),
        "## HAMi's resources",
        "",
        "KAI's nodes advertise none of them. By default a pod of KAI's scheduler gets KAI's annotations in their "
        "place:",
        "",
        *table(
            [
                ({}, {"containers": [limited("main", gpu=1, gpumem=4096, gpucores=30)]}),
                ({}, {"containers": [limited("main", gpumem_percentage=25)]}),
                ({}, {"containers": [limited("main", gpu=1, gpucores=30)]}),
                ({}, {"containers": [limited("main", gpu=1)]}),
                ({}, {"containers": [limited("main", gpumem=1), limited("side", gpumem=1)]}),
                ({}, {"containers": [limited("main", gpumem=0)]}),
                ({}, {"containers": [limited("main", gpumem=1)], "schedulerName": "hami-scheduler"}),
                ({"gpu-memory": "1"}, {"containers": [limited("main", gpumem=1)]}),
            ]
        ),
        "With `--hami-resources cap` they stay, for another scheduler, and each container gets its cap:",
        "",
        *table(
            [
                (
                    {},
                    {
                        "containers": [limited("main", gpumem=4096), limited("side", gpumem=1024)],
                        "schedulerName": "default-scheduler",
                    },
                )
            ],
            T4,
            Options(hami_resources="cap"),
        ),
        "## Opting out",
        "",
        *table([({"gpu-memory": "4096", names.INJECT_ANNOTATION: "false"}, {})]),
        "In a namespace that is reviewed at `/mutate/enforce`, or with `--no-pod-opt-out`:",
        "",
        *table([({"gpu-memory": "4096", names.INJECT_ANNOTATION: "false"}, {})], treatment="enforce"),
        "In a namespace that is reviewed at `/mutate/exempt`:",
        "",
        *table([({"gpu-memory": "4096"}, {})], treatment="exempt"),
        "## Debug containers",
        "",
        *debugging(Options()),
        "With `--region hostPath`:",
        "",
        *debugging(ON_THE_NODE),
        "## A whole pod",
        "",
        '`gpu-fraction: "0.25"`, as it comes out:',
        "",
        *whole_pod(),
        "With `--region hostPath` these parts of it come out otherwise:",
        "",
        *otherwise(ON_THE_NODE),
    ]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
