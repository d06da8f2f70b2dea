"""HAMi's layout before it had a version: 1,197,896 bytes (1,197,897 in the file).

A file of this layout does not say so: its size does, in every reader of HAMi. Each slot is shorter than in layout 1,
there is no time of the last kernel, and `owner` (with padding) stands where layout 1 has its version.
"""

from ctypes import LittleEndianStructure, c_char, c_int32, c_uint32, c_uint64, sizeof

from isolator_core.region.layout_v1 import DEVICES, SLOTS, UUID_BYTES


class UsedMemory(LittleEndianStructure):
    """Bytes that one process holds on one device."""

    _fields_ = (
        ("context_size", c_uint64),
        ("module_size", c_uint64),
        ("data_size", c_uint64),
        ("offset", c_uint64),
        ("total", c_uint64),
    )


class DeviceUtilisation(LittleEndianStructure):
    """Percent of one device's engines that one process keeps busy."""

    _fields_ = (
        ("dec", c_uint64),
        ("enc", c_uint64),
        ("sm_util", c_uint64),
    )


class Slot(LittleEndianStructure):
    """One process."""

    _fields_ = (
        ("pid", c_int32),
        ("hostpid", c_int32),
        ("used", UsedMemory * DEVICES),
        ("monitorused", c_uint64 * DEVICES),
        ("device_util", DeviceUtilisation * DEVICES),
        ("status", c_int32),
        ("padding", c_int32),
    )


class Header(LittleEndianStructure):
    """All that stands before the slots."""

    _fields_ = (
        ("magic", c_int32),
        ("sm_init_flag", c_int32),
        ("owner_pid", c_uint32),
        ("padding", c_uint32),
        ("sem", c_char * 32),
        ("device_num", c_uint64),
        ("uuids", (c_char * UUID_BYTES) * DEVICES),
        ("limit", c_uint64 * DEVICES),
        ("sm_limit", c_uint64 * DEVICES),
    )


class Trailer(LittleEndianStructure):
    """All that stands behind the slots."""

    _fields_ = (
        ("proc_num", c_int32),
        ("utilization_switch", c_int32),
        ("recent_kernel", c_int32),
        ("priority", c_int32),
    )


class Region(LittleEndianStructure):
    """The whole, for offsets and tests: a reader takes it in pieces."""

    _fields_ = (
        ("header", Header),
        ("procs", Slot * SLOTS),
        ("trailer", Trailer),
    )


SLOTS_OFFSET = Region.procs.offset
TRAILER_OFFSET = Region.trailer.offset
BYTES = sizeof(Region)
