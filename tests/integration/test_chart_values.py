"""What the chart makes of its values, without a cluster: sentences for what nobody reads, names, images, budgets."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.helm import generate
from tests.cluster import programs
from tests.cluster.client import Object
from tests.cluster.release import CHARTS, UMBRELLA
from tests.cluster.rendering import COMMAND_SECONDS, GOLDEN, WITH_OPERATOR, Refused, golden_values, template

pytestmark = [pytest.mark.cluster, pytest.mark.every_change]

THIN = ["webhook", "vramd", "libsync", "monitor"]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [item for item in objects if item["kind"] == kind]


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


@pytest.mark.parametrize("helm", [3, 4])
@pytest.mark.parametrize("chart", ["kai-resource-isolator", *THIN])
def test_charts_pass_the_strict_linter(chart: str, helm: int) -> None:
    command = [str(programs.ensure(f"helm{helm}")), "lint", "--strict", str(CHARTS / chart)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chart", THIN)
def test_a_thin_chart_renders_what_the_umbrella_renders_for_its_service(chart: str) -> None:
    def of_service(objects: list[Object]) -> list[Object]:
        found = [item for item in objects if item["metadata"]["labels"]["app.kubernetes.io/component"] == chart]
        return [json.loads(json.dumps(item).replace(f"isolator-{chart}-0", "CHART-0")) for item in found]

    umbrella = json.loads(
        json.dumps(template({"monitor": {"enabled": True}})).replace("kai-resource-isolator-0", "CHART-0")
    )
    alone = template({}, CHARTS / chart)
    assert of_service(alone)
    assert of_service(alone) == of_service(umbrella)


@pytest.mark.parametrize("helm", [3, 4])
@pytest.mark.parametrize("chart", ["kai-resource-isolator", *THIN])
def test_a_packaged_chart_renders_what_its_folder_renders(chart: str, helm: int, tmp_path: Path) -> None:
    command = [str(programs.ensure(f"helm{helm}")), "package", str(CHARTS / chart), "--destination", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=COMMAND_SECONDS)
    (archive,) = tmp_path.iterdir()
    assert template({}, archive, helm=helm) == template({}, CHARTS / chart, helm=helm)


def test_both_helms_render_the_same() -> None:
    def identified(objects: list[Object]) -> dict[tuple[str, str], Object]:
        return {(item["kind"], item["metadata"]["name"]): item for item in objects}

    assert identified(template(helm=3)) == identified(template(helm=4))


def test_generated_files_are_fresh() -> None:
    stale = [str(path) for path, content in generate.outputs().items() if path.read_text() != content]
    assert not stale, "run `python -m deploy.helm.generate`"


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("webhook.replicas", 3, "webhook.replicas is not a value of this chart: did you mean webhook.replicaCount?"),
        ("monitor.enable", True, "monitor.enable is not a value of this chart: did you mean monitor.enabled?"),
        ("librarysync.enabled", True, "librarysync is not a value of this chart: did you mean librarySync.enabled?"),
        ("vramd.image.sha", "x", "vramd.image.sha is not a value of this chart: did you mean vramd.image."),
        ("xyz", 1, "xyz is not a value of this chart; the chart's README lists all values"),
        ("paths.hostInstallBase", "/opt", "paths.hostInstallBase is retired: it had no effect"),
        ("tls.patch.image", "other/certgen:1", "tls.patch.image is retired: there is no certificate job"),
        ("tls.patch.enabled", False, "tls.patch.enabled is retired"),
        ("tls.patch.nodeSelector", {"a": "b"}, "tls.patch.nodeSelector is retired"),
        ("monitor.resyncInterval", "1m", "monitor.resyncInterval is retired"),
        ("image.repository", "projecthami/kai-resource-isolator", "that is the upstream chart's image"),
        ("tls.existingSecret", "mine", "tls.existingSecret is set without tls.caBundle"),
        ("policies", None, "policies is missing: null does not take its place"),
        ("monitor.serviceMonitor", None, "monitor.serviceMonitor is missing"),
        ("policies.enabled", None, "policies.enabled is missing: null does not take its place"),
        ("rbac.create", None, "rbac.create is missing"),
        ("tls.caBundle", "pem", "tls.caBundle is set without tls.existingSecret"),
        ("vramd.tlsSecret", "s", "vramd.tlsSecret is set without webhook.vramdTlsSecret"),
        ("webhook.vramdTlsSecret", "s", "webhook.vramdTlsSecret is set without vramd.tlsSecret"),
        ("webhook.gpuShareResources", "nvidia.com/gpumem;x", "accepted are resource names"),
        ("paths.hostDir", "/var/lib/mine/", "accepted is an absolute path"),
        ("paths.hostDir", "/var/lib/../mine", "accepted is an absolute path"),
        ("paths.containerVgpuMount", "usr/local/vgpu", 'paths.containerVgpuMount is "usr/local/vgpu"'),
        ("paths.kubeletRoot", "", 'paths.kubeletRoot is ""'),
        ("monitor.regionRoots", ["/a", "/b c"], 'monitor.regionRoots[1] is "/b c"'),
    ],
)
def test_a_value_that_would_do_nothing_ends_the_rendering_with_a_sentence(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        template(nested(path, value))
    assert sentence in str(refused.value)


def test_whatever_a_value_holds_an_argument_stays_one() -> None:
    odd = "a: #b"
    values: dict[str, Any] = {
        "listenAddress": "::",
        "kai": {"schedulerName": odd, "reservationNamespace": odd},
        "webhook": {"hamiScheduler": odd, "vramdAddress": odd, "regionSizeMib": 1048576,
                    "guard": {"mode": "audit", "exemptNamespaces": [odd], "nvidiaRuntimeClasses": [odd]}},
        "librarySync": {"nodeLabel": odd, "nodeCondition": odd, "seLinuxType": odd},
        "monitor": {"enabled": True},
    }  # fmt: skip
    workloads = pods_of(template(values)).values()
    arguments = [arg for pod in workloads for item in pod["spec"]["containers"] for arg in item.get("args", [])]
    assert all(isinstance(argument, str) for argument in arguments)
    assert len([argument for argument in arguments if argument.endswith(f"={odd}")]) == 9
    assert arguments.count("--listen-address=::") == 4
    assert "--region-size-mib=1048576" in arguments


@pytest.mark.parametrize("part", ["webhook", "vramd", "librarySync", "monitor"])
def test_parts_that_are_switched_off_are_checked_too(part: str) -> None:
    with pytest.raises(Refused, match=rf"{part}\.nodeSelectors is not a value .*: did you mean {part}\.nodeSelector\?"):
        template({part: {"enabled": False, "nodeSelectors": {"a": "b"}}})


@pytest.mark.parametrize(
    ("path", "value"),
    [("webhook.replicaCount", "two"), ("webhook.failurePolicy", "fail"), ("service.port", 70000), ("logLevel", "loud")],
)
def test_the_schema_refuses_wrong_types_and_values(path: str, value: Any) -> None:
    with pytest.raises(Refused) as refused:
        template(nested(path, value))
    assert path.replace(".", "/") in str(refused.value)


UPSTREAM_DEFAULTS: dict[str, Any] = {
    "nameOverride": "", "fullnameOverride": "", "namespaceOverride": "",
    "global": {"imageRegistry": "", "imagePullSecrets": []},
    "image": {"registry": "docker.io", "tag": "latest", "pullPolicy": "IfNotPresent"},
    "paths": {"hostInstallBase": "/usr/local", "containerVgpuMount": "/usr/local/vgpu"},
    "librarySync": {
        "nodeSelector": {}, "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}], "resources": {},
        "priorityClassName": "system-node-critical", "podLabels": {}, "podAnnotations": {},
    },
    "monitor": {
        "enabled": True, "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}], "runtimeClassName": "", "resources": {},
        "priorityClassName": "system-node-critical", "resyncInterval": "5m", "updateInterval": "5s",
        "metricsPort": 9394,
        "service": {"type": "ClusterIP", "port": 9394, "annotations": {}, "labels": {}},
        "serviceMonitor": {"enabled": False, "interval": "30s", "scrapeTimeout": "10s", "labels": {}},
        "legacyMetrics": False,
    },
    "webhook": {
        "replicaCount": 1, "podDisruptionBudget": {"minAvailable": 1}, "nodeSelector": {}, "tolerations": [],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "podLabels": {}, "podAnnotations": {}, "failurePolicy": "Ignore",
        "gpuShareResources": "nvidia.com/gpu,nvidia.com/gpumem,nvidia.com/gpucores",
    },
    "tls": {
        "certManager": {"enabled": False},
        "patch": {
            "enabled": True, "image": "jettech/kube-webhook-certgen:v1.5.2",
            "imageNew": "liangjw/kube-webhook-certgen:v1.1.1", "runAsUser": 2000, "nodeSelector": {}, "tolerations": [],
        },
    },
    "service": {"type": "ClusterIP", "port": 443},
    "rbac": {"create": True},
}  # fmt: skip
"""Every key of the upstream chart with its default, as a copy of its values has them; but for the image's repository,
which cannot mean the same here."""


def test_every_upstream_value_is_taken() -> None:
    objects = template(UPSTREAM_DEFAULTS)
    (webhook,) = of_kind(objects, "MutatingWebhookConfiguration")
    assert webhook["metadata"]["name"] == "kai-resource-isolator-mutating"
    assert webhook["webhooks"][0]["name"] == "vgpu.lib.kai-resource-isolator.io"
    assert {entry["failurePolicy"] for entry in webhook["webhooks"]} == {"Ignore"}
    images = [
        container["image"]
        for item in of_kind(objects, "Deployment") + of_kind(objects, "DaemonSet")
        for container in item["spec"]["template"]["spec"]["containers"]
    ]
    assert set(images) == {
        f"docker.io/kai-resource-isolator-{part}:latest" for part in ("webhook", "vramd", "monitor", "libsync")
    }


def test_values_of_the_old_chart_alone_are_too_few_and_say_so(tmp_path: Path) -> None:
    """`helm upgrade --reuse-values` puts them in place of the new chart's."""
    chart = shutil.copytree(UMBRELLA, tmp_path / "chart")
    (chart / "values.yaml").write_text(yaml.safe_dump(UPSTREAM_DEFAULTS))
    with pytest.raises(Refused, match=r"\w+ is missing: .*; use --reset-then-reuse-values"):
        template({}, chart)


def test_null_takes_a_value_of_an_earlier_release_back() -> None:
    taken = {"tls": {"patch": None}, "monitor": {"resyncInterval": None, "earlier": None}, "earlier": None}
    assert template(taken) == template()


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "kai-resource-isolator-webhook:0.1.0"),
        ({"image": {"registry": "a.example", "tag": 1.5}}, "a.example/kai-resource-isolator-webhook:1.5"),
        ({"image": {"registry": "a", "repository": "team/kri"}}, "a/team/kri-webhook:0.1.0"),
        ({"global": {"imageRegistry": "g/"}, "image": {"registry": "a"}}, "g/kai-resource-isolator-webhook:0.1.0"),
        ({"webhook": {"image": {"repository": "own", "registry": "b", "tag": "3"}}}, "b/own:3"),
        ({"webhook": {"image": {"digest": "sha256:12", "tag": "3"}}}, "kai-resource-isolator-webhook@sha256:12"),
    ],
)
def test_images(values: dict[str, Any], image: str) -> None:
    (deployment,) = [
        item for item in of_kind(template(values), "Deployment") if item["metadata"]["name"].endswith("webhook-server")
    ]
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image


@pytest.mark.parametrize(
    ("release", "values", "prefix"),
    [
        ("kai-resource-isolator", {}, "kai-resource-isolator"),
        ("gpu", {}, "gpu-kai-resource-isolator"),
        ("my-kai-resource-isolator-2", {}, "my-kai-resource-isolator-2"),
        ("gpu", {"nameOverride": "iso"}, "gpu-iso"),
        ("gpu", {"fullnameOverride": "iso"}, "iso"),
        ("r" * 53, {}, "r" * 40),
    ],
)
def test_names_are_made_as_upstream_makes_them(release: str, values: dict[str, Any], prefix: str) -> None:
    objects = template(values, name=release)
    (webhook,) = of_kind(objects, "MutatingWebhookConfiguration")
    assert webhook["metadata"]["name"] == f"{prefix}-mutating"
    bounded = [item for item in objects if not item["kind"].startswith("ClusterRole")]
    assert all(len(item["metadata"]["name"]) <= 63 for item in bounded)


def test_all_objects_go_to_the_chosen_namespace() -> None:
    objects = template({"namespaceOverride": "other", "test": {"namespace": "tried"}})
    assert {item["metadata"].get("namespace") for item in objects} == {"other", "tried", None}
    assert {item["kind"] for item in objects if item["metadata"].get("namespace") == "tried"} == {"Role", "RoleBinding"}


@pytest.mark.parametrize(
    ("budget", "field", "value"),
    [
        ({}, "minAvailable", 1),
        (None, "minAvailable", 1),
        ({"minAvailable": None}, "minAvailable", 1),
        ({"minAvailable": ""}, "minAvailable", 1),
        ({"minAvailable": 0}, "minAvailable", 0),
        ({"minAvailable": 2}, "minAvailable", 2),
        ({"maxUnavailable": 0}, "maxUnavailable", 0),
        ({"maxUnavailable": "50%"}, "maxUnavailable", "50%"),
        ({"maxUnavailable": "100%"}, "maxUnavailable", "100%"),
        ({"maxUnavailable": 2147483647}, "maxUnavailable", 2147483647),
    ],
)
def test_a_disruption_budget_has_exactly_one_field(budget: Any, field: str, value: Any) -> None:
    (found,) = of_kind(template({"webhook": {"podDisruptionBudget": budget}}), "PodDisruptionBudget")
    assert {key: found["spec"][key] for key in found["spec"] if key != "selector"} == {field: value}


@pytest.mark.parametrize("value", ["150%", "abc", -1, "-1", 2147483648, 1e21])
def test_an_impossible_disruption_budget_is_refused(value: Any) -> None:
    with pytest.raises(Refused, match=r"webhook\.podDisruptionBudget\.minAvailable is .*: accepted are an integer"):
        template({"webhook": {"podDisruptionBudget": {"minAvailable": value}}})


def test_one_replica_has_no_disruption_budget() -> None:
    assert not of_kind(template({"webhook": {"replicaCount": 1}}), "PodDisruptionBudget")


def test_no_service_puts_variables_among_a_programs_settings() -> None:
    objects = template({"fullnameOverride": "isolator", "monitor": {"enabled": True}})
    specs = [item["spec"]["template"]["spec"] for item in objects if item["kind"] in ("Deployment", "DaemonSet")]
    assert len(specs) == 4
    assert all(spec["enableServiceLinks"] is False for spec in specs)


def pods_of(objects: list[Object]) -> dict[str, Object]:
    """Pod templates by the name of their workload."""
    workloads = of_kind(objects, "Deployment") + of_kind(objects, "DaemonSet")
    return {item["metadata"]["name"]: item["spec"]["template"] for item in workloads}


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    return bool(selector["matchLabels"].items() <= labels.items())


@pytest.mark.parametrize("case", GOLDEN)
def test_network_policies_let_in_what_pods_listen_on_and_nothing_else(case: str) -> None:
    objects = template(golden_values(case))
    policies = of_kind(objects, "NetworkPolicy")
    if not golden_values(case).get("networkPolicy", {}).get("enabled", True):
        assert policies == []
        return
    for name, pod in pods_of(objects).items():
        (policy,) = [item for item in policies if selects(item["spec"]["podSelector"], pod["metadata"]["labels"])]
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        let_in = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
        assert let_in == {port["name"] for item in pod["spec"]["containers"] for port in item.get("ports", [])}, name


@pytest.mark.parametrize("host_network", [False, True])
def test_only_webhooks_ask_vramd_where_a_policy_can_tell_them(host_network: bool) -> None:
    objects = template({"webhook": {"hostNetwork": host_network}})
    (policy,) = [item for item in of_kind(objects, "NetworkPolicy") if item["metadata"]["name"].endswith("-vramd")]
    (rule,) = [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "grpc"]
    if host_network:
        assert "from" not in rule
        return
    (peer,) = rule["from"]
    let_in = {name for name, pod in pods_of(objects).items() if selects(peer["podSelector"], pod["metadata"]["labels"])}
    assert let_in == {"kai-resource-isolator-webhook-server"}


def test_no_mount_of_the_nodes_own_mounts_holds_them() -> None:
    """What is unmounted on the node must go in the container too, or a volume stays busy for as long as that runs."""
    above = ("/", "/var/lib/kubelet", "/var/lib/kubelet/pods")
    values = {"librarySync": {"checkNodeLibc": True}, "monitor": {"enabled": True}, "volumes": {"region": "hostPath"}}
    found = set()
    for pod in pods_of(template(values)).values():
        volumes = pod["spec"].get("volumes", [])
        wide = {volume["name"] for volume in volumes if volume.get("hostPath", {}).get("path") in above}
        for container in pod["spec"]["containers"]:
            for mount in container.get("volumeMounts", []):
                if mount["name"] in wide:
                    found.add(container["name"])
                    assert mount["mountPropagation"] == "HostToContainer"
    assert found == {"libsync", "reader", "steerer", "cleaner"}


def test_each_flag_and_variable_is_one_that_the_program_knows() -> None:
    """Every value that makes a flag is set, and the services' own parsers look at what comes out."""
    everything: dict[str, Any] = {
        "webhook": {"vramdTlsSecret": "a", "hostNetwork": True},
        "vramd": {"tlsSecret": "a", "perGpuVramMib": 15360},
        "librarySync": {"nodeLabel": "a/b", "nodeCondition": "a/c", "seLinuxType": "t", "checkNodeLibc": True},
        "volumes": {"region": "hostPath"},
        "monitor": {"enabled": True, "legacyMetrics": True, "regionRoots": ["/regions"], "updateInterval": "1m30s"},
    }
    seen = set()
    for values in (everything, everything | {"tls": {"existingSecret": "a", "caBundle": "PEM"}}):
        for item in template(values):
            if item["kind"] not in ("Deployment", "DaemonSet"):
                continue
            part = item["metadata"]["labels"]["app.kubernetes.io/component"]
            for container in item["spec"]["template"]["spec"]["containers"]:
                command, *flags = container["args"]
                known = words_of_help("monitor" if part == "cleaner" else part, command)
                assert {flag.partition("=")[0] for flag in flags} <= known
                variables = {entry["name"] for entry in container.get("env", [])}
                assert {name for name in variables if name.startswith("ISOLATOR_")} <= known
                seen.add(f"{part} {command}")
    assert seen == {
        "webhook serve", "vramd serve", "libsync run", "monitor serve", "monitor read", "monitor steer",
        "cleaner clean",
    }  # fmt: skip


@functools.cache
def words_of_help(part: str, command: str) -> set[str]:
    """Flags and variables that a program's `--help` names."""
    environment = os.environ | {"COLUMNS": "1000"}
    printed = subprocess.run(
        [sys.executable, "-m", f"isolator_{part}", command, "--help"],
        check=True, capture_output=True, text=True, env=environment, timeout=COMMAND_SECONDS,
    ).stdout  # fmt: skip
    return set(re.findall(r"--[a-z][a-z-]+|[A-Z]+_[A-Z_]+", printed))


@pytest.mark.parametrize(("given", "seconds"), [("5s", 5.0), ("1m30s", 90.0), ("500ms", 0.5), ("1.5s", 1.5)])
def test_times_are_read_as_upstream_writes_them(given: str, seconds: float) -> None:
    objects = template({"monitor": {"enabled": True, "updateInterval": given}})
    (monitor,) = [item for item in of_kind(objects, "DaemonSet") if "monitor" in item["metadata"]["name"]]
    arguments = monitor["spec"]["template"]["spec"]["containers"][0]["args"]
    (interval,) = [item.partition("=")[2] for item in arguments if item.startswith("--update-interval")]
    assert float(interval) == seconds


def test_objects_for_prometheus_and_grafana_where_they_are_wanted_and_known() -> None:
    wanted: dict[str, Any] = {
        "metrics": {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
        "monitor": {
            "enabled": True,
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True},
        },
    }
    kinds = {"PodMonitor": 3, "ServiceMonitor": 1, "PrometheusRule": 1}
    with_operator = template(wanted, UMBRELLA, *WITH_OPERATOR)
    assert {kind: len(of_kind(with_operator, kind)) for kind in kinds} == kinds
    without = template(wanted)
    assert {kind: len(of_kind(without, kind)) for kind in kinds} == dict.fromkeys(kinds, 0)
    (service_monitor,) = of_kind(with_operator, "ServiceMonitor")
    # Without it every pod's series would bear the monitor's own namespace, pod and container.
    assert [endpoint["honorLabels"] for endpoint in service_monitor["spec"]["endpoints"]] == [True]
    # Alerts name the node, which an address does not tell.
    endpoints = [*service_monitor["spec"]["endpoints"]]
    endpoints += [one for item in of_kind(with_operator, "PodMonitor") for one in item["spec"]["podMetricsEndpoints"]]
    node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
    assert [endpoint["relabelings"] for endpoint in endpoints] == [[node]] * 4
    (rule,) = of_kind(with_operator, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(
        (CHARTS / "../../services/monitor/rules/kai-resource-isolator.yaml").read_text()
    )
    (dashboard,) = of_kind(without, "ConfigMap")
    assert json.loads(dashboard["data"]["kai-resource-isolator.json"])["title"] == "GPU shares"
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_alerts_on_every_service_are_there_without_the_monitor() -> None:
    values = {"monitor": {"enabled": False, "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}}}}
    objects = template(values, UMBRELLA, *WITH_OPERATOR)
    assert not [item for item in of_kind(objects, "DaemonSet") if item["metadata"]["name"].endswith("monitor")]
    (rule,) = of_kind(objects, "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"


@pytest.mark.parametrize("case", GOLDEN)
def test_rendered_objects_are_those_reviewed(case: str) -> None:
    """Every change of what is rendered shows in a diff. `UPDATE_GOLDEN=1 pytest …` writes what is rendered now."""
    objects = template(golden_values(case), UMBRELLA, *WITH_OPERATOR, kube_version="1.34.0")
    for item in of_kind(objects, "ConfigMap") + of_kind(objects, "PrometheusRule"):
        # Files of the monitor, which has its own tests for them.
        item.pop("data", None)
        item.pop("spec", None)
    reviewed = CHARTS / "golden" / f"{case}.yaml"
    text = yaml.safe_dump_all(objects, sort_keys=True, width=120)
    if os.environ.get("UPDATE_GOLDEN"):
        reviewed.write_text(text)
    assert reviewed.read_text() == text


@pytest.mark.parametrize(
    ("kubernetes", "gate", "sentence"),
    [
        ("1.30.0", True, "Kubernetes v1.30.0 has no image volumes, 1.31 and later have"),
        ("1.34.2", False, "with it set volumes.imageVolumeGate, without it use hostPath"),
        ("1.34.2-gke.1", True, ""),
        ("1.35.0", False, ""),
    ],
)
def test_an_image_volume_needs_a_kubernetes_that_has_them(kubernetes: str, gate: bool, sentence: str) -> None:
    values = {"volumes": {"library": "image", "imageVolumeGate": gate}}
    if not sentence:
        assert template(values, kube_version=kubernetes)
        return
    with pytest.raises(Refused) as refused:
        template(values, kube_version=kubernetes)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("volumes", "expected"),
    [
        ({"library": "hostPath"}, 1),
        ({"library": "image"}, 0),
        ({"library": "image", "region": "hostPath"}, 1),
    ],
)
def test_libsync_is_there_where_it_has_something_to_do(volumes: dict[str, str], expected: int) -> None:
    values = {"volumes": volumes, "cleaner": {"enabled": False}}
    assert len(of_kind(template(values), "DaemonSet")) == expected


def test_policies_are_left_out_where_kubernetes_has_none() -> None:
    assert len(of_kind(template(kube_version="1.30.0"), "ValidatingAdmissionPolicy")) == 3
    assert not of_kind(template(kube_version="1.29.5"), "ValidatingAdmissionPolicy")


def test_only_a_certificate_of_ones_own_puts_a_ca_bundle_into_the_webhook() -> None:
    def client(values: dict[str, Any]) -> Object:
        (webhook,) = of_kind(template(values), "MutatingWebhookConfiguration")
        return dict(webhook["webhooks"][0]["clientConfig"])

    assert "caBundle" not in client({})
    assert "caBundle" not in client({"tls": {"certManager": {"enabled": True}}})
    assert client({"tls": {"existingSecret": "a", "caBundle": "PEM"}})["caBundle"] == "UEVN"


def notes(values: Mapping[str, Any]) -> str:
    """What `helm install` prints at the end; nothing is installed."""
    command = [
        str(programs.ensure("helm4")), "install", "kai-resource-isolator", str(UMBRELLA), "--namespace", "isolator",
        "--dry-run=client", "--values", "-",
    ]  # fmt: skip
    done = subprocess.run(
        command, input=json.dumps(values), check=True, capture_output=True, text=True, timeout=COMMAND_SECONDS
    )
    return done.stdout.partition("NOTES:\n")[2]


@pytest.mark.parametrize(
    ("values", "said", "not_said"),
    [
        ({}, "helm test kai-resource-isolator --namespace isolator", "monitor"),
        ({}, "sharing pods are refused while it is down", "cleaner"),
        ({"webhook": {"failurePolicy": "Ignore"}}, "admitted without their limit while it is down", "are refused"),
        ({"webhook": {"enabled": False}}, "libsync   DaemonSet", "helm test"),
        ({"monitor": {"enabled": True}}, "Service kai-resource-isolator-monitor, port 9394", "had no effect"),
        ({"volumes": {"region": "hostPath"}}, "of the node: libsync, cleaner. Where", "monitor"),
        ({"tls": {"certManager": {"enabled": True}}}, "certificate: from cert-manager", "by the webhook"),
        ({"tls": {"existingSecret": "a", "caBundle": "PEM"}}, "the Secret of tls.existingSecret", "by the webhook"),
        ({"policies": {"enabled": False}}, "tenants may change the limits of their running pods", "1.30 and later"),
        ({"metrics": {"podMonitor": {"enabled": True}}}, "metrics.podMonitor.enabled had no effect", "monitor."),
        (
            {"monitor": {"prometheusRule": {"enabled": True}}},
            "monitor.prometheusRule.enabled had no effect",
            "podMonitor",
        ),
    ],
)
def test_notes_say_what_was_installed(values: dict[str, Any], said: str, not_said: str) -> None:
    printed = notes(values)
    assert said in printed
    assert not_said not in printed
