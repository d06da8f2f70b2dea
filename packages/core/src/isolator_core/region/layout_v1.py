"""HAMi's layout 1.0 to 1.2: 2,008,952 bytes, x86-64 and AArch64 alike (little-endian, natural alignment).

1.1 and 1.2 differ in names only: where 1.2 has the slots' `seqlock` and `sem_postinit`, 1.1 has unused words.
The offsets are those of HAMi-core's `shared_region_t`, which HAMi's test `TestSharedRegionTLayoutMatchesCABI` holds
too.
"""

from ctypes import LittleEndianStructure, c_char, c_int32, c_uint64, sizeof

MAGIC = 19920718
MAJOR = 1
MINORS = (0, 1, 2)
DEVICES = 16
SLOTS = 1024
UUID_BYTES = 96


class UsedMemory(LittleEndianStructure):
    """Bytes that one process holds on one device."""

    _fields_ = (
        ("context_size", c_uint64),
        ("module_size", c_uint64),
        ("data_size", c_uint64),
        ("offset", c_uint64),
        ("total", c_uint64),
        ("unused", c_uint64 * 3),
    )


class DeviceUtilisation(LittleEndianStructure):
    """Percent of one device's engines that one process keeps busy."""

    _fields_ = (
        ("dec", c_uint64),
        ("enc", c_uint64),
        ("sm_util", c_uint64),
        ("unused", c_uint64 * 3),
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
        ("seqlock", c_uint64),
        ("unused", c_uint64 * 2),
    )


class Header(LittleEndianStructure):
    """All that stands before the slots."""

    _fields_ = (
        ("magic", c_int32),
        ("major_version", c_int32),
        ("minor_version", c_int32),
        ("sm_init_flag", c_int32),
        ("owner_pid", c_uint64),
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
        ("last_kernel_time", c_uint64),
        ("sem_postinit", c_char * 32),
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
