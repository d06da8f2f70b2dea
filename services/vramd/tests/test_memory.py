"""What a node says of its GPU's memory."""

import pytest

from isolator_vramd.memory import Memory, NodeFacts, NoMemory, NoShare, memory_from_hami, memory_from_label, memory_of


@pytest.mark.parametrize(
    ("value", "mib"),
    [
        ("15360", 15360),
        ("0100", 100),
        ("1", 1),
        ("1048575", 1048575),
        ("1048576", 1),
        ("42949672960", 40960),
        ("16106127360", 15360),
        ("9223372036854775807", 8796093022207),
    ],
)
def test_label_in_mib_and_in_bytes(value: str, mib: int) -> None:
    assert memory_from_label(value) == Memory(mib)


@pytest.mark.parametrize(
    "value", ["", "0", "000", "15Gi", "15360m", "-1", "1e3", "1_000", "٣", "9223372036854775808", "15360\n"]
)
def test_label_that_is_no_amount(value: str) -> None:
    memory = memory_from_label(value)
    assert isinstance(memory, NoMemory)
    assert "nvidia.com/gpu.memory" in memory.reason
    assert repr(value) in memory.reason


def facts(
    labels: dict[str, str] | None = None, capacity: dict[str, str] | None = None, hami_register: str = ""
) -> NodeFacts:
    return NodeFacts(labels or {}, capacity or {}, capacity or {}, hami_register)


def test_who_has_a_gpu() -> None:
    assert memory_of(facts()) is None
    assert memory_of(facts({"nvidia.com/gpu.count": "0"}, {"nvidia.com/gpu": "0", "cpu": "8"})) is None
    missing = NoMemory("label nvidia.com/gpu.memory is missing")
    assert memory_of(facts({"nvidia.com/gpu.present": "true"})) == missing
    assert memory_of(facts({"nvidia.com/gpu.count": "2"})) == missing
    assert memory_of(facts(capacity={"nvidia.com/gpu": "1"})) == missing
    assert memory_of(facts(capacity={"nvidia.com/mig-1g.5gb": "7"})) == missing


CUT = {"node-role.kubernetes.io/mig-enabled": "true"}
LABEL = {"nvidia.com/gpu.memory": "40960"}


@pytest.mark.parametrize("strategy", ["single", "mixed"])
def test_node_that_kai_sees_as_cut_by_mig_takes_no_shares(strategy: str) -> None:
    labels = {"nvidia.com/mig.strategy": strategy, **LABEL}
    for node in (facts(labels | CUT), facts(labels, {"nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu": "0"})):
        memory = memory_of(node)
        assert isinstance(memory, NoShare)
        assert strategy in memory.reason


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"nvidia.com/mig.strategy": "none"} | CUT,
        CUT,
        # Strategy single on cards that are not cut, or that KAI does not see as such.
        {"nvidia.com/mig.strategy": "single"},
        {"nvidia.com/mig.strategy": "mixed", "node-role.kubernetes.io/mig-enabled": "false"},
        # Time-slicing: turns on the whole card.
        {"nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.product": "NVIDIA-A100-SHARED"},
    ],
)
def test_label_counts_as_it_is(labels: dict[str, str]) -> None:
    assert memory_of(facts(LABEL | labels, {"nvidia.com/gpu": "8"})) == Memory(40960)


def test_label_of_a_slice_counts_where_kai_places_shares_on_slices() -> None:
    labels = {"nvidia.com/mig.strategy": "single", "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
    assert memory_of(facts(labels | {"nvidia.com/gpu.memory": "4864"}, {"nvidia.com/gpu": "7"})) == Memory(4864)


def test_invalid_mig_configuration_has_no_memory() -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-MIG-INVALID", "nvidia.com/gpu.memory": "0"}
    assert isinstance(memory_of(facts(labels)), NoMemory)


# As HAMi's users show them in its issues 314, 1422 and 1565.
OLD = "GPU-b7c4eb59,10,40960,100,NVIDIA-NVIDIA A100-PCIE-40GB,0,true:GPU-ec7d894f,10,24576,100,NVIDIA-A30,0,false:"
OLDER = "GPU-1,10,4096,100,NVIDIA-NVIDIA GeForce GTX 1050,0,true,0,hami-core:"
JSON = (
    '[{"id":"GPU-1","count":10,"devmem":4096,"devcore":100,"type":"NVIDIA-NVIDIA GeForce GTX 1050",'
    '"mode":"hami-core","health":true},{"id":"GPU-2","index":1,"count":10,"devmem":8192}]'
)
CUT_DEVICE = "GPU-3,10,1024,100,NVIDIA-A30,0,true,0,mig:"


@pytest.mark.parametrize(
    ("register", "mib"),
    [(OLD, 24576), (OLDER, 4096), (JSON, 4096), (OLD + CUT_DEVICE, 24576)],
)
def test_hami_registration_where_there_is_no_label(register: str, mib: int) -> None:
    assert memory_of(facts(hami_register=register)) == Memory(mib, "hami")
    assert memory_of(facts(LABEL, hami_register=register)) == Memory(40960)
    assert memory_of(facts({"nvidia.com/gpu.memory": "0"}, hami_register=register)) == Memory(mib, "hami")


@pytest.mark.parametrize(
    "register", ["x", "GPU-1,10", "GPU-1,10,much,100", "[]", "[{]", '[{"devmem":"4096"}]', "GPU-1,10,0,100", CUT_DEVICE]
)
def test_hami_registration_that_is_not_understood(register: str) -> None:
    memory = memory_from_hami(register)
    assert isinstance(memory, NoMemory)
    assert "hami.io/node-nvidia-register" in memory.reason
    assert memory_of(facts(hami_register=register)) == NoMemory("label nvidia.com/gpu.memory is missing")


@pytest.mark.parametrize(
    ("product", "capacity", "mib"),
    [
        ("NVIDIA-GB10", "119211920Ki", 116417),
        ("NVIDIA-GB10-SHARED", "119211920Ki", 116417),
        ("Orin", "32Gi", 32768),
        ("NVIDIA-GB10", "125003055104", 119212),
        ("NVIDIA-GB10", "125G", 119209),
    ],
)
def test_unified_memory_is_the_nodes_memory(product: str, capacity: str, mib: int) -> None:
    node = facts({"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "1"}, {"memory": capacity})
    assert memory_of(node) == Memory(mib, "unified")


def test_unified_memory_with_a_label_is_the_label() -> None:
    node = facts(
        {"nvidia.com/gpu.product": "NVIDIA-GB10", "nvidia.com/gpu.memory": "100000"}, {"memory": "119211920Ki"}
    )
    assert memory_of(node) == Memory(100000)


@pytest.mark.parametrize(
    ("product", "capacity"),
    [
        ("NVIDIA-GH200-480GB", "500Gi"),
        ("NVIDIA-GB100", "500Gi"),
        ("Tesla-T4", "500Gi"),
        ("NVIDIA-GB10", ""),
        ("NVIDIA-GB10", "1e6"),
        ("NVIDIA-GB10", "much"),
        ("NVIDIA-GB10", "-5Gi"),
    ],
)
def test_other_gpus_never_take_the_nodes_memory(product: str, capacity: str) -> None:
    node = facts({"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "1"}, {"memory": capacity})
    assert isinstance(memory_of(node), NoMemory)
