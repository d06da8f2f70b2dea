from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_UNSPECIFIED: _ClassVar[Source]
    SOURCE_NODES: _ClassVar[Source]
    SOURCE_OVERRIDE: _ClassVar[Source]

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CAUSE_NOT_READ: _ClassVar[Cause]
    CAUSE_NO_GPU_NODE: _ClassVar[Cause]
    CAUSE_NONE_ELIGIBLE: _ClassVar[Cause]
    CAUSE_NO_MEMORY: _ClassVar[Cause]

class MemoryOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_ORIGIN_UNSPECIFIED: _ClassVar[MemoryOrigin]
    MEMORY_ORIGIN_LABEL: _ClassVar[MemoryOrigin]
    MEMORY_ORIGIN_HAMI: _ClassVar[MemoryOrigin]
    MEMORY_ORIGIN_UNIFIED: _ClassVar[MemoryOrigin]
SOURCE_UNSPECIFIED: Source
SOURCE_NODES: Source
SOURCE_OVERRIDE: Source
CAUSE_UNSPECIFIED: Cause
CAUSE_NOT_READ: Cause
CAUSE_NO_GPU_NODE: Cause
CAUSE_NONE_ELIGIBLE: Cause
CAUSE_NO_MEMORY: Cause
MEMORY_ORIGIN_UNSPECIFIED: MemoryOrigin
MEMORY_ORIGIN_LABEL: MemoryOrigin
MEMORY_ORIGIN_HAMI: MemoryOrigin
MEMORY_ORIGIN_UNIFIED: MemoryOrigin

class GetBasisRequest(_message.Message):
    __slots__ = ("node_selector", "required_node_affinity", "node_name", "with_software")
    class NodeSelectorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_NODE_AFFINITY_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    WITH_SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    node_selector: _containers.ScalarMap[str, str]
    required_node_affinity: RequiredNodeAffinity
    node_name: str
    with_software: bool
    def __init__(self, node_selector: _Optional[_Mapping[str, str]] = ..., required_node_affinity: _Optional[_Union[RequiredNodeAffinity, _Mapping]] = ..., node_name: _Optional[str] = ..., with_software: _Optional[bool] = ...) -> None: ...

class WatchBasisRequest(_message.Message):
    __slots__ = ("constraints",)
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    constraints: GetBasisRequest
    def __init__(self, constraints: _Optional[_Union[GetBasisRequest, _Mapping]] = ...) -> None: ...

class ListGpuNodesRequest(_message.Message):
    __slots__ = ("constraints",)
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    constraints: GetBasisRequest
    def __init__(self, constraints: _Optional[_Union[GetBasisRequest, _Mapping]] = ...) -> None: ...

class RequiredNodeAffinity(_message.Message):
    __slots__ = ("terms",)
    TERMS_FIELD_NUMBER: _ClassVar[int]
    terms: _containers.RepeatedCompositeFieldContainer[NodeSelectorTerm]
    def __init__(self, terms: _Optional[_Iterable[_Union[NodeSelectorTerm, _Mapping]]] = ...) -> None: ...

class NodeSelectorTerm(_message.Message):
    __slots__ = ("match_expressions", "match_fields")
    MATCH_EXPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELDS_FIELD_NUMBER: _ClassVar[int]
    match_expressions: _containers.RepeatedCompositeFieldContainer[NodeSelectorRequirement]
    match_fields: _containers.RepeatedCompositeFieldContainer[NodeSelectorRequirement]
    def __init__(self, match_expressions: _Optional[_Iterable[_Union[NodeSelectorRequirement, _Mapping]]] = ..., match_fields: _Optional[_Iterable[_Union[NodeSelectorRequirement, _Mapping]]] = ...) -> None: ...

class NodeSelectorRequirement(_message.Message):
    __slots__ = ("key", "operator", "values")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class GetBasisResponse(_message.Message):
    __slots__ = ("basis", "unknown", "age_seconds", "software")
    BASIS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    AGE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    basis: Basis
    unknown: Unknown
    age_seconds: float
    software: _containers.RepeatedCompositeFieldContainer[NodeSoftware]
    def __init__(self, basis: _Optional[_Union[Basis, _Mapping]] = ..., unknown: _Optional[_Union[Unknown, _Mapping]] = ..., age_seconds: _Optional[float] = ..., software: _Optional[_Iterable[_Union[NodeSoftware, _Mapping]]] = ...) -> None: ...

class NodeSoftware(_message.Message):
    __slots__ = ("kubelet_version", "container_runtime_version", "nodes", "example")
    KUBELET_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    kubelet_version: str
    container_runtime_version: str
    nodes: int
    example: str
    def __init__(self, kubelet_version: _Optional[str] = ..., container_runtime_version: _Optional[str] = ..., nodes: _Optional[int] = ..., example: _Optional[str] = ...) -> None: ...

class Basis(_message.Message):
    __slots__ = ("basis_mib", "source", "nodes", "distribution", "heterogeneous", "nodes_without_memory")
    BASIS_MIB_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    HETEROGENEOUS_FIELD_NUMBER: _ClassVar[int]
    NODES_WITHOUT_MEMORY_FIELD_NUMBER: _ClassVar[int]
    basis_mib: int
    source: Source
    nodes: int
    distribution: _containers.RepeatedCompositeFieldContainer[MemoryCount]
    heterogeneous: bool
    nodes_without_memory: int
    def __init__(self, basis_mib: _Optional[int] = ..., source: _Optional[_Union[Source, str]] = ..., nodes: _Optional[int] = ..., distribution: _Optional[_Iterable[_Union[MemoryCount, _Mapping]]] = ..., heterogeneous: _Optional[bool] = ..., nodes_without_memory: _Optional[int] = ...) -> None: ...

class MemoryCount(_message.Message):
    __slots__ = ("memory_mib", "nodes")
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    memory_mib: int
    nodes: int
    def __init__(self, memory_mib: _Optional[int] = ..., nodes: _Optional[int] = ...) -> None: ...

class Unknown(_message.Message):
    __slots__ = ("reason", "cause")
    REASON_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    cause: Cause
    def __init__(self, reason: _Optional[str] = ..., cause: _Optional[_Union[Cause, str]] = ...) -> None: ...

class ListGpuNodesResponse(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[GpuNode]
    def __init__(self, nodes: _Optional[_Iterable[_Union[GpuNode, _Mapping]]] = ...) -> None: ...

class GpuNode(_message.Message):
    __slots__ = ("name", "memory_mib", "unknown", "takes_no_share", "origin", "product", "kubelet_version", "container_runtime_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    TAKES_NO_SHARE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    PRODUCT_FIELD_NUMBER: _ClassVar[int]
    KUBELET_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_RUNTIME_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    memory_mib: int
    unknown: str
    takes_no_share: str
    origin: MemoryOrigin
    product: str
    kubelet_version: str
    container_runtime_version: str
    def __init__(self, name: _Optional[str] = ..., memory_mib: _Optional[int] = ..., unknown: _Optional[str] = ..., takes_no_share: _Optional[str] = ..., origin: _Optional[_Union[MemoryOrigin, str]] = ..., product: _Optional[str] = ..., kubelet_version: _Optional[str] = ..., container_runtime_version: _Optional[str] = ...) -> None: ...
