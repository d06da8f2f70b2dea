"""The ten things that the demo shows, in the order in which they are looked at."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from tests.demo.api_server import Refused
from tests.demo.conversation import Workload, WorkloadFailure, another, mib_text
from tests.demo.report import FAILURE, Check, Facts
from tests.demo.services import ServiceFailure
from tests.demo.site import CARD_MIB, COMMAND, GPU, Pod, Site
from tests.node.objects import PodFailure
from tests.node.runtime import RuntimeFailure

GRANTED, REFUSED = "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"
MEMORY_PODS = ("inference", "notebook")
FRACTION_POD = "training"
LIMIT_MIB = 4147
"""What KAI's binder makes of 4096 on this card: portion 0.27 of 15360 MiB, truncated."""
LIMIT = f"{LIMIT_MIB} MiB"
SCRAPE_SECONDS = 10.0
NAMES = (
    "same_gpu",
    "visible_memory",
    "enforced",
    "shared_in_container",
    "independent",
    "without_isolation",
    "fraction",
    "metrics",
    "environment_cleared",
    "cannot_raise",
)

Failure = Refused | PodFailure | WorkloadFailure | ServiceFailure | RuntimeFailure
FAILURES = (Refused, PodFailure, WorkloadFailure, ServiceFailure, RuntimeFailure)


class Pods:
    """The pods of one stage. One that did not start fails every check that needs it, with the reason."""

    def __init__(self, site: Site, examples: tuple[str, ...], *, hamicore: bool, isolated: bool = True) -> None:
        self._site = site
        self._pods: dict[str, Pod | Failure] = {}
        for example in examples:
            try:
                self._pods[example] = site.start(example, hamicore=hamicore, isolated=isolated)
            except FAILURES as failure:
                self._pods[example] = failure
                site.progress(f"{example} does not run: {failure}")

    def __getitem__(self, example: str) -> Pod:
        pod = self._pods[example]
        if not isinstance(pod, Pod):
            raise pod
        return pod

    def workloads(self) -> list[Workload]:
        return [self[example].workload for example in self._pods]

    def stop(self) -> None:
        for pod in self._pods.values():
            if isinstance(pod, Pod):
                self._site.stop(pod)


@dataclass(frozen=True)
class Look:
    """How one check is made: what is expected, and how to observe it, with the lines that it is parsed from."""

    name: str
    expected: Facts
    observe: Callable[[list[str]], Facts]

    def check(self) -> Check:
        raw: list[str] = []
        try:
            observed = self.observe(raw)
        except FAILURES as failure:
            return Check(self.name, self.expected, {FAILURE: str(failure)}, [*raw, str(failure)])
        return Check(self.name, self.expected, observed, raw)


def run(site: Site) -> Iterator[Check]:
    """Make every check. What one holds it gives back; the pods that need the same card come one stage after another."""
    pods = Pods(site, MEMORY_PODS, hamicore=True)
    for look in (
        same_gpu(site, pods),
        visible_memory(site, pods),
        enforced(pods),
        shared_in_container(pods),
        independent(pods),
        metrics(site, pods),
        environment_cleared(pods),
        cannot_raise(pods),
    ):
        yield look.check()
    pods.stop()
    # Half a card does not fit beside the two: KAI would place it when they have ended.
    pods = Pods(site, (FRACTION_POD,), hamicore=False)
    yield fraction(pods).check()
    pods.stop()
    pods = Pods(site, MEMORY_PODS, hamicore=True, isolated=False)
    yield without_isolation(pods).check()
    pods.stop()


def same_gpu(site: Site, pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        facts: Facts = {}
        for workload in pods.workloads():
            facts[f"GPU of {workload.name}"] = str(workload.ask("info")["uuid"])
            raw += workload.take_said()
        listed = site.nvidia_smi("--query-gpu=uuid", "--format=csv,noheader")
        raw.append(f"host: {listed}")
        return facts | {"GPUs of the host": listed}

    expected: Facts = {**{f"GPU of {name}": GPU for name in MEMORY_PODS}, "GPUs of the host": GPU}
    return Look("same_gpu", expected, observe)


def visible_memory(site: Site, pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        facts: Facts = {}
        for workload in pods.workloads():
            facts[workload.name] = workload.visible()
            raw += workload.take_said()
        listed = site.nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader")
        raw.append(f"host: {listed}")
        return facts | {"host": listed}

    expected: Facts = {**dict.fromkeys(MEMORY_PODS, LIMIT), "host": f"{CARD_MIB} MiB"}
    return Look("visible_memory", expected, observe)


def enforced(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        facts: Facts = {}
        for workload in pods.workloads():
            facts[f"{workload.name}: 3 GiB"] = workload.alloc(3072)
            facts[f"{workload.name}: 2 GiB more"] = workload.alloc(2048)
            workload.ask("free")
            raw += workload.take_said()
        return facts

    expected: Facts = {}
    for name in MEMORY_PODS:
        expected |= {f"{name}: 3 GiB": GRANTED, f"{name}: 2 GiB more": REFUSED}
    return Look("enforced", expected, observe)


def shared_in_container(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        pod = pods["inference"]
        first = pod.workload
        container = pod.running.containers[pod.container]
        first_held = first.ask("alloc 3072")["held_bytes"]
        raw += first.take_said()
        with another("second process", container, COMMAND) as second:
            second_held = second.ask("fill")["held_bytes"]
            raw += second.take_said()
        first.ask("free")
        raw += first.take_said()
        return {
            "first process holds": mib_text(first_held),
            "second gets at most": mib_text(second_held),
            "together": mib_text(first_held + second_held),
        }

    expected: Facts = {
        "first process holds": "3072 MiB",
        "second gets at most": f"{LIMIT_MIB - 3072} MiB",
        "together": LIMIT,
    }
    return Look("shared_in_container", expected, observe)


def independent(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        facts: Facts = {}
        for workload in pods.workloads():
            facts[f"{workload.name}: 3 GiB"] = workload.alloc(3072)
            raw += workload.take_said()
        for workload in pods.workloads():
            workload.ask("free")
            raw += workload.take_said()
        return facts

    return Look("independent", {f"{name}: 3 GiB": GRANTED for name in MEMORY_PODS}, observe)


def metrics(site: Site, pods: Pods) -> Look:
    held = {"inference": 3072 << 20, "notebook": 1024 << 20}
    expected: Facts = {}
    for name in MEMORY_PODS:
        expected |= {f"{name}: limit, bytes": LIMIT_MIB << 20, f"{name}: used, bytes": held[name]}

    def observe(raw: list[str]) -> Facts:
        for workload in pods.workloads():
            workload.alloc(held[workload.name] >> 20)
            raw += workload.take_said()
        # The monitor reads the node at an interval, so the values of now come with one of its next readings.
        deadline = time.monotonic() + SCRAPE_SECONDS
        while (scraped := _memory_series(site.scrape()))[0] != expected and time.monotonic() < deadline:
            time.sleep(0.1)
        for workload in pods.workloads():
            workload.ask("free")
            raw += workload.take_said()
        raw += scraped[1]
        return scraped[0]

    return Look("metrics", expected, observe)


def _memory_series(exposition: str) -> tuple[Facts, list[str]]:
    """Limit and use of each pod out of a scrape, and the lines that they stand in."""
    names = {"hami_vgpu_memory_limit_bytes": "limit", "hami_vgpu_memory_used_bytes": "used"}
    facts: Facts = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name in names:
                facts[f"{sample.labels['pod']}: {names[sample.name]}, bytes"] = int(sample.value)
    return facts, [line for line in exposition.splitlines() if line.startswith(tuple(names))]


def environment_cleared(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        pod = pods["inference"]
        held = pod.workload.alloc(3072)
        raw += pod.workload.take_said()
        command = ("/usr/bin/env", "-i", *COMMAND)
        with another("env -i", pod.running.containers[pod.container], command) as cleared:
            facts: Facts = {
                "inference: 3 GiB": held,
                "env -i: variables": cleared.ask("environment PATH")["variables"],
                "env -i: memory": cleared.visible(),
                "env -i: 2 GiB more": cleared.alloc(2048),
            }
            raw += cleared.take_said()
        pod.workload.ask("free")
        raw += pod.workload.take_said()
        return facts

    expected: Facts = {
        "inference: 3 GiB": GRANTED,
        "env -i: variables": 0,
        "env -i: memory": LIMIT,
        "env -i: 2 GiB more": REFUSED,
    }
    return Look("environment_cleared", expected, observe)


def cannot_raise(pods: Pods) -> Look:
    attempts = {"CUDA_DEVICE_MEMORY_LIMIT": f"{CARD_MIB}m", "CONTAINER_NAME": "other"}
    expected: Facts = {"inference: 3 GiB": GRANTED}
    for name in attempts:
        expected |= {f"{name}: memory": LIMIT, f"{name}: 2 GiB more": REFUSED}

    def observe(raw: list[str]) -> Facts:
        pod = pods["inference"]
        facts: Facts = {"inference: 3 GiB": pod.workload.alloc(3072)}
        raw += pod.workload.take_said()
        for name, value in attempts.items():
            container = pod.running.containers[pod.container]
            with another(f"{name}={value}", container, COMMAND, {name: value}) as process:
                process.ask(f"environment {name}")
                facts |= {f"{name}: memory": process.visible(), f"{name}: 2 GiB more": process.alloc(2048)}
                raw += process.take_said()
        pod.workload.ask("free")
        raw += pod.workload.take_said()
        return facts

    return Look("cannot_raise", expected, observe)


def fraction(pods: Pods) -> Look:
    limit = CARD_MIB // 2

    def observe(raw: list[str]) -> Facts:
        workload = pods[FRACTION_POD].workload
        variable = workload.ask("environment CUDA_DEVICE_MEMORY_LIMIT")["value"]
        facts: Facts = {
            "training: memory": workload.visible(),
            "training: 7 GiB": workload.alloc(7168),
            "training: 1 GiB more": workload.alloc(1024),
            "CUDA_DEVICE_MEMORY_LIMIT": variable if variable is not None else "not set",
        }
        raw += workload.take_said()
        return facts

    expected: Facts = {
        "training: memory": f"{limit} MiB",
        "training: 7 GiB": GRANTED,
        "training: 1 GiB more": REFUSED,
        "CUDA_DEVICE_MEMORY_LIMIT": f"{limit}m",
    }
    return Look("fraction", expected, observe)


def without_isolation(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        first, second = pods.workloads()
        facts: Facts = {
            "inference: memory": first.visible(),
            "inference: 14 GiB": first.alloc(14336),
            "notebook: 3 GiB": second.alloc(3072),
        }
        raw += first.take_said() + second.take_said()
        return facts

    expected: Facts = {
        "inference: memory": f"{CARD_MIB} MiB",
        "inference: 14 GiB": GRANTED,
        "notebook: 3 GiB": REFUSED,
    }
    return Look("without_isolation", expected, observe)
