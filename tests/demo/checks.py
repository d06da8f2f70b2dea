"""The ten things that the demo shows, in the order in which they are looked at."""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from tests.demo.api_server import Refused
from tests.demo.conversation import Workload, WorkloadFailure, mib_text
from tests.demo.report import FAILURE, Check, Facts
from tests.demo.services import ServiceFailure
from tests.demo.site import CARD_MIB, COMMAND, CONTEXT_MIB, GPU, Pod, Site
from tests.node.objects import PodFailure
from tests.node.runtime import RuntimeFailure

GRANTED, REFUSED = "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"
MEMORY_PODS = ("inference", "notebook")
FRACTION_POD = "training"
LIMIT_MIB = 4147
"""What KAI's binder makes of 4096 on this card: portion 0.27 of 15360 MiB, truncated."""
LIMIT = f"{LIMIT_MIB} MiB"
SCRAPE_SECONDS = 10.0
SCRAPE_INTERVAL = 0.1
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


@contextlib.contextmanager
def heard(workloads: Iterable[Workload], raw: list[str]) -> Iterator[None]:
    """A block whose workloads' lines are kept, and after which they hold nothing."""
    workloads = list(workloads)
    try:
        yield
    finally:
        for workload in workloads:
            workload.ask("free")
            raw += workload.take_said()


def run(site: Site) -> Iterator[Check]:
    """Make every check. Each gives back what it holds; pods that need the same card come one stage after another."""
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
        with heard(pods.workloads(), raw):
            for workload in pods.workloads():
                facts[f"GPU of {workload.name}"] = str(workload.ask("info")["uuid"])
        listed = site.nvidia_smi("--query-gpu=uuid", "--format=csv,noheader")
        raw.append(f"host: {listed}")
        return facts | {"GPUs of the host": listed}

    expected: Facts = {**{f"GPU of {name}": GPU for name in MEMORY_PODS}, "GPUs of the host": GPU}
    return Look("same_gpu", expected, observe)


def visible_memory(site: Site, pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        facts: Facts = {}
        with heard(pods.workloads(), raw):
            for workload in pods.workloads():
                facts[workload.name] = workload.visible()
        listed = site.nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader")
        raw.append(f"host: {listed}")
        return facts | {"host": listed}

    expected: Facts = {**dict.fromkeys(MEMORY_PODS, LIMIT), "host": f"{CARD_MIB} MiB"}
    return Look("visible_memory", expected, observe)


def enforced(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        facts: Facts = {}
        for workload in pods.workloads():
            with heard([workload], raw):
                facts[f"{workload.name}: 3 GiB"] = workload.alloc(3072)
                facts[f"{workload.name}: 2 GiB more"] = workload.alloc(2048)
        return facts

    expected: Facts = {}
    for name in MEMORY_PODS:
        expected |= {f"{name}: 3 GiB": GRANTED, f"{name}: 2 GiB more": REFUSED}
    return Look("enforced", expected, observe)


def shared_in_container(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        pod = pods["inference"]
        with heard([pod.workload], raw), pod.another("second process", COMMAND) as second, heard([second], raw):
            first_held = pod.workload.ask("alloc 3072")["held_bytes"]
            second_held = second.ask("fill")["held_bytes"]
            container = second.ask("info")["cuMemGetInfo"]
        return {
            "first process holds": mib_text(first_held),
            "second gets at most": mib_text(second_held),
            "with both contexts": mib_text(container["total_bytes"] - container["free_bytes"]),
        }

    expected: Facts = {
        "first process holds": "3072 MiB",
        "second gets at most": f"{LIMIT_MIB - 3072 - 2 * CONTEXT_MIB} MiB",
        "with both contexts": LIMIT,
    }
    return Look("shared_in_container", expected, observe)


def independent(pods: Pods) -> Look:
    def observe(raw: list[str]) -> Facts:
        with heard(pods.workloads(), raw):
            return {f"{workload.name}: 3 GiB": workload.alloc(3072) for workload in pods.workloads()}

    return Look("independent", dict.fromkeys((f"{name}: 3 GiB" for name in MEMORY_PODS), GRANTED), observe)


def metrics(site: Site, pods: Pods) -> Look:
    held_mib = {"inference": 3072, "notebook": 1024}
    expected: Facts = {}
    for name in MEMORY_PODS:
        expected |= {
            f"{name}: limit, bytes": LIMIT_MIB << 20,
            f"{name}: used, bytes": (held_mib[name] + CONTEXT_MIB) << 20,
        }

    def observe(raw: list[str]) -> Facts:
        with heard(pods.workloads(), raw):
            for workload in pods.workloads():
                workload.alloc(held_mib[workload.name])
            # The monitor reads the node at an interval, so the values of now come with one of its next readings.
            deadline = time.monotonic() + SCRAPE_SECONDS
            while (scraped := memory_series(site.scrape()))[0] != expected and time.monotonic() < deadline:
                time.sleep(SCRAPE_INTERVAL)
        raw += scraped[1]
        return scraped[0]

    return Look("metrics", expected, observe)


def memory_series(exposition: str) -> tuple[Facts, list[str]]:
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
        command = ("/usr/bin/env", "-i", *COMMAND)
        with heard([pod.workload], raw), pod.another("env -i", command) as cleared, heard([cleared], raw):
            return {
                "inference: 3 GiB": pod.workload.alloc(3072),
                "env -i: variables": cleared.ask("environment PATH")["variables"],
                "env -i: memory": cleared.visible(),
                "env -i: 2 GiB more": cleared.alloc(2048),
            }

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
    for name, value in attempts.items():
        expected |= {name: value, f"{name}: memory": LIMIT, f"{name}: 2 GiB more": REFUSED}

    def observe(raw: list[str]) -> Facts:
        pod = pods["inference"]
        with heard([pod.workload], raw):
            facts: Facts = {"inference: 3 GiB": pod.workload.alloc(3072)}
            for name, value in attempts.items():
                with pod.another(f"{name}={value}", COMMAND, {name: value}) as process, heard([process], raw):
                    facts[name] = str(process.ask(f"environment {name}")["value"])
                    facts |= {f"{name}: memory": process.visible(), f"{name}: 2 GiB more": process.alloc(2048)}
        return facts

    return Look("cannot_raise", expected, observe)


def fraction(pods: Pods) -> Look:
    limit = CARD_MIB // 2

    def observe(raw: list[str]) -> Facts:
        workload = pods[FRACTION_POD].workload
        with heard([workload], raw):
            variable = workload.ask("environment CUDA_DEVICE_MEMORY_LIMIT")["value"]
            return {
                "training: memory": workload.visible(),
                "training: 7 GiB": workload.alloc(7168),
                "training: 1 GiB more": workload.alloc(1024),
                "CUDA_DEVICE_MEMORY_LIMIT": variable if variable is not None else "not set",
            }

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
        with heard([first, second], raw):
            return {
                "inference: memory": first.visible(),
                "inference: 14 GiB": first.alloc(14336),
                "notebook: 3 GiB": second.alloc(3072),
            }

    expected: Facts = {
        "inference: memory": f"{CARD_MIB} MiB",
        "inference: 14 GiB": GRANTED,
        "notebook: 3 GiB": REFUSED,
    }
    return Look("without_isolation", expected, observe)
