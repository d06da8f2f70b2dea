"""The chart's match conditions and the webhook agree about which pods are to be asked about, and err on none."""

import itertools
import json
from functools import cache
from typing import Any

import celpy
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.cluster.rendering import template
from tests.integration.test_chart_values import of_kind

from isolator_core.requests import per_container
from isolator_webhook.decision import Skip, decide
from isolator_webhook.options import Options
from isolator_webhook.pod import Pod

pytestmark = [pytest.mark.cluster, pytest.mark.every_change]

OURS = "kai-resource-isolator.io/"
KEYS = [
    "gpu-memory",
    "gpu-fraction",
    "gpu-fraction-num-devices",
    "gpu-fraction-container-name",
    "mps",
    OURS + "gpu-cores",
    OURS + "priority",
    OURS + "inject",
    OURS + "request.0",
    "kubernetes.io/config.mirror",
    "gpu-fraction.limit",
    "gpu-memory.limit",
    "kai.scheduler/container.main.gpu-memory.portion.limit",
    "nvidia.com/container.main.gpu-memory.limit",
    "nvidia.com/container.main.gpus.devices",
    "nvidia.com/container.main.gpu-compute.mode",
    "nvidia.com/containers",
    "other",
]
VALUES = ["", "1", "0.5", "false", "False", "FALSE", "falſe", "true", "falsey", " false"]
RESOURCES = [
    "cpu",
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    "nvidia.com/priority",
]

limits = st.dictionaries(st.sampled_from(RESOURCES), st.sampled_from(["0", "1", "50"]), max_size=3)
resources = st.fixed_dictionaries({}, optional={"limits": limits, "requests": limits})
containers = st.fixed_dictionaries({"name": st.sampled_from(["main", "side"])}, optional={"resources": resources})
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just("a")},
            optional={"annotations": st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=4)},
        ),
        "spec": st.fixed_dictionaries(
            {
                "containers": st.lists(containers, min_size=1, max_size=2),
                "schedulerName": st.sampled_from(["kai-scheduler", "default-scheduler", "hami-scheduler"]),
            },
            optional={"initContainers": st.lists(containers, max_size=2)},
        ),
    }
)


@cache
def conditions() -> tuple[celpy.Runner, ...]:
    (configuration,) = of_kind(template(), "MutatingWebhookConfiguration")
    environment = celpy.Environment()
    found = tuple(
        environment.program(environment.compile(condition["expression"]))
        for webhook in configuration["webhooks"]
        if webhook["name"] == "vgpu.lib.kai-resource-isolator.io"
        for condition in webhook["matchConditions"]
    )
    assert len(found) == 3
    return found


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """Compile before hypothesis runs: celpy raises the recursion limit, which hypothesis complains about."""
    conditions()


def is_called(pod: Any) -> bool:
    content = celpy.json_to_cel(json.loads(json.dumps(pod)))
    # Every one is evaluated: none may err, not even behind one that is false.
    answers = [bool(condition.evaluate({"object": content})) for condition in conditions()]
    return all(answers)


def decision_of(pod: Any) -> Any:
    return decide(msgspec.convert(pod, Pod), Options())


def plain(**annotations: str) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations}, "spec": {"containers": [{"name": "main"}]}}


@settings(max_examples=1000, deadline=None)
@given(pods)
@example({"metadata": {}, "spec": {"containers": [{"name": "main"}]}})
@example(plain())
def test_the_webhook_is_called_for_every_pod_that_it_has_something_to_say_about(pod: Any) -> None:
    called, decision = is_called(pod), decision_of(pod)
    if not isinstance(decision, Skip):
        assert called
    elif called:
        # Called for nothing, at the price of a call: annotations of containers that are no request, a priority alone,
        # and what only matters when a debug container comes.
        harmless = (per_container.PREFIX, "nvidia.com/priority", OURS + "request.")
        assert decision.reason in ("hami_scheduler", "other_scheduler") or (
            decision.reason == "no_request" and any(name in json.dumps(pod) for name in harmless)
        )


def test_the_conditions_tell_pods_apart() -> None:
    seen = set()
    for key, value in itertools.product(KEYS, VALUES):
        pod = plain(**{"gpu-memory": "1", key: value}) if key.startswith((OURS, "kube")) else plain(**{key: value})
        seen.add((is_called(pod), isinstance(decision_of(pod), Skip)))
    assert (True, False) in seen
    assert (False, True) in seen
    assert (False, False) not in seen
