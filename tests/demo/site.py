"""The demo's node and cluster: a fake Tesla T4, the services, a kubelet, and pods taken from manifest to container."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import yaml
from tests.demo import api_server, kai, services
from tests.demo.conversation import Workload
from tests.demo.services import Service
from tests.node.kubelet import Kubelet, RunningPod
from tests.node.nvidia import STATE, Driver
from tests.node.objects import Api, Json
from tests.node.runtime import Image, interpreter

from isolator_core import names
from isolator_testing.certificates import Authority

REPOSITORY = Path(__file__).parents[2]
LIBRARY = REPOSITORY / "native/hami-core/build/libvgpu.so"
FAKE_GPU = REPOSITORY / "tests/fakegpu"
DRIVER_FILES = ("libcuda.so.1", "libnvidia-ml.so.1")
EXAMPLES = REPOSITORY / "examples"
SERVICES = ("vramd", "webhook", "libsync", "monitor")

GPU = "GPU-5f3c9a1e-7d24-4b8e-9c60-2f1a8e4d7b35"
CARD_MIB = 15360
NODE: Json = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {
        "name": "node-t4",
        "labels": {
            "nvidia.com/gpu.product": "Tesla-T4",
            "nvidia.com/gpu.count": "1",
            "nvidia.com/gpu.memory": str(CARD_MIB),
        },
    },
}
CONTEXT_MIB = 100
"""What a CUDA context costs on this card: charged to the container for each of its processes."""
FAKE_GPU_CONFIG = f"""\
state = {STATE}/card
driver = 580.95.05
cuda = 13.0
[device]
name = Tesla T4
uuid = {GPU}
memory-mib = {CARD_MIB}
context-mib = {CONTEXT_MIB}
sm-count = 40
compute-capability = 7.5
pci = 0000:00:04.0
"""

PYTHON = Path(sys.prefix) / "bin/python"
WORKLOAD = Path(__file__).with_name("workload.py")
COMMAND = (str(PYTHON), str(WORKLOAD))
IMAGE = Image(entrypoint=COMMAND, paths=(*interpreter(), WORKLOAD))
"""Every container's image here: this environment's Python and the workload."""

Progress = Callable[[str], None]


@dataclass
class Pod:
    """A pod that runs, and the workload in its fraction container."""

    running: RunningPod
    container: str
    workload: Workload

    @contextlib.contextmanager
    def another(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Iterator[Workload]:
        """One more process in the container for the length of a block, as `kubectl exec` starts it."""
        process = self.running.containers[self.container].exec(command, environment)
        try:
            yield Workload(name, process)
        finally:
            process.kill()


@dataclass
class Site:
    """What the checks work with."""

    directory: Path
    api: Api
    kubelet: Kubelet
    webhook: api_server.Webhook
    metrics_url: str | None
    """None where the monitor is left out."""
    progress: Progress
    services: list[Service]
    _pods: list[Json] = field(default_factory=list)

    def start(self, example: str, *, hamicore: bool, isolated: bool = True) -> Pod:
        """Take a manifest of `examples/` through admission and bind, and run it.

        `isolated=False` is a cluster without this project. Raises api_server.Refused, PodFailure or WorkloadFailure.
        """
        manifest = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())
        ours = self.webhook if isolated else None
        stored = api_server.admit(manifest, ours, lambda pod: kai.admit(pod, hamicore=hamicore))
        bound = kai.bind(self.api, stored, NODE, GPU, hamicore=hamicore)
        self._pods.append(bound)
        self._tell_pods()
        running = self.kubelet.start(bound)
        _index, container = kai.fraction_container(bound)
        workload = Workload(example, running.containers[container["name"]].main)
        self.progress(f"{example} runs" + ("" if isolated else ", without isolation"))
        return Pod(running, container["name"], workload)

    def stop(self, pod: Pod) -> None:
        """End a pod; it is gone from the API server too."""
        self.kubelet.stop(pod.running)
        self._pods.remove(pod.running.manifest)
        self._tell_pods()

    def nvidia_smi(self, *arguments: str) -> str:
        """What the stand-in for nvidia-smi prints on the node, outside every container."""
        assert self.kubelet.driver is not None
        done = subprocess.run(
            [sys.executable, str(FAKE_GPU / "nvidia-smi"), *arguments],
            env={"PATH": services.PATH, "LD_LIBRARY_PATH": str(self.kubelet.driver.directory)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def scrape(self) -> str:
        """The monitor's exposition of now. Raises services.ServiceFailure."""
        if self.metrics_url is None:
            raise services.ServiceFailure("no monitor is running")
        try:
            return httpx.get(self.metrics_url, timeout=5, trust_env=False).raise_for_status().text
        except httpx.HTTPError as error:
            raise services.ServiceFailure(f"monitor: {error!r}") from error

    def _tell_pods(self) -> None:
        _write_pods(self.directory, self._pods)


def _write_pods(directory: Path, pods: list[Json]) -> None:
    listing = {"apiVersion": "v1", "kind": "PodList", "items": pods}
    services.write_atomically(directory / "pods.json", json.dumps(listing))


def install_driver(directory: Path) -> Driver:
    """The fake card's driver in a directory of its own."""
    (directory / STATE).mkdir(parents=True)
    for name in DRIVER_FILES:
        shutil.copy(FAKE_GPU / "build" / name, directory / name)
    (directory / "fakegpu.conf").write_text(FAKE_GPU_CONFIG)
    return Driver(directory, [GPU])


@contextlib.contextmanager
def running(directory: Path, left_out: Collection[str], progress: Progress) -> Iterator[Site]:
    """A site in `directory` with every service that is not left out. Raises services.ServiceFailure."""
    node = directory / "node"
    driver = install_driver(directory / "driver")
    api = Api()
    images = {container["image"]: IMAGE for container in _example_containers()}
    with contextlib.ExitStack() as stack:
        kubelet = stack.enter_context(Kubelet(node, api, images, driver))
        started, webhook, metrics_url = _start_services(stack, directory, kubelet, left_out, progress)
        site = Site(directory, api, kubelet, webhook, metrics_url, progress, started)
        # Before any container, so that the driver knows which PID namespace is the machine's.
        progress(f"the card is {site.nvidia_smi('-L')}")
        yield site


def _start_services(
    stack: contextlib.ExitStack, directory: Path, kubelet: Kubelet, left_out: Collection[str], progress: Progress
) -> tuple[list[Service], api_server.Webhook, str | None]:
    assert kubelet.driver is not None
    (directory / "nodes.json").write_text(json.dumps({"apiVersion": "v1", "kind": "NodeList", "items": [NODE]}))
    _write_pods(directory, [])
    authority = Authority()
    authority.issue(services.ADDRESS).write(directory)
    trust = authority.client()
    listen = ["--listen-address", services.ADDRESS, "--listen-port", "0"]
    host_dir = kubelet.root / names.HOST_DIR.lstrip("/")
    first = {
        "vramd": ([*listen, "--nodes-file", str(directory / "nodes.json"), "--metrics-port", "0"], {}),
        "libsync": ([*listen, "--host-dir", str(host_dir), "--library", str(LIBRARY)], {}),
        "monitor": (
            [
                *listen,
                "--pods-file", str(directory / "pods.json"),
                "--kubelet-root", str(kubelet.kubelet_root),
                "--host-dir", str(host_dir),
                "--update-interval", "0.5",
            ],
            {"LD_LIBRARY_PATH": str(kubelet.driver.directory)},
        ),
    }  # fmt: skip
    command = {"vramd": "serve", "libsync": "run", "monitor": "serve", "webhook": "serve"}
    started = {
        name: stack.enter_context(services.running(name, [command[name], *arguments], directory, environment))
        for name, (arguments, environment) in first.items()
        if name not in left_out
    }
    nobody = stack.enter_context(services.unused_port())
    vramd_port = started["vramd"].wait_for("listening")["port"] if "vramd" in started else nobody
    webhook_port, metrics_url = nobody, None
    if "webhook" not in left_out:
        arguments = [
            "serve", *listen,
            "--certificate-file", str(directory / "tls.crt"),
            "--key-file", str(directory / "tls.key"),
            "--vramd-address", f"{services.ADDRESS}:{vramd_port}",
            "--metrics-port", "0",
            "--drain-seconds", "0",
        ]  # fmt: skip
        started["webhook"] = stack.enter_context(services.running("webhook", arguments, directory))
        webhook_port = started["webhook"].wait_for("listening")["port"]
        services.wait_until_ready(started["webhook"], f"https://{services.ADDRESS}:{webhook_port}/readyz", trust)
    if "libsync" in started:
        port = started["libsync"].wait_for("listening")["port"]
        services.wait_until_ready(started["libsync"], f"http://{services.ADDRESS}:{port}/readyz")
    if "monitor" in started:
        port = started["monitor"].wait_for("listening")["port"]
        services.wait_until_ready(started["monitor"], f"http://{services.ADDRESS}:{port}/readyz")
        metrics_url = f"http://{services.ADDRESS}:{port}/metrics"
    progress(f"{', '.join(name for name in SERVICES if name in started)} ready")
    webhook = api_server.Webhook(f"https://{services.ADDRESS}:{webhook_port}/mutate", trust)
    return list(started.values()), webhook, metrics_url


def _example_containers() -> Iterator[Json]:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        yield from yaml.safe_load(path.read_text())["spec"]["containers"]
