"""The extension block, version 1: what enforcement keeps behind HAMi's layout (`native/hami-core/docs/region.md`)."""

from ctypes import LittleEndianStructure, c_char, c_int64, c_uint32, c_uint64, sizeof

from isolator_core.region.layout_v1 import DEVICES, SLOTS

OFFSET = 2_011_136
MAGIC = b"ISOLATOR"
VERSION = 1
FLAG_MANAGED = 1


class Header(LittleEndianStructure):
    """What the block is."""

    _fields_ = (
        ("magic", c_char * 8),
        ("version", c_uint32),
        ("flags", c_uint32),
        ("bytes", c_uint64),
        ("slots", c_uint32),
        ("devices", c_uint32),
        ("created", c_uint64),
        ("reserved", c_char * 4056),
    )


class Device(LittleEndianStructure):
    """One device of the container."""

    _fields_ = (
        ("total", c_uint64),
        ("tag", c_uint64),
        ("reserved1", c_char * 48),
        ("limit", c_uint64),
        ("card_total", c_uint64),
        ("cuda_total", c_uint64),
        ("refusals", c_uint64),
        ("last_refusal", c_uint64),
        ("last_refused", c_uint64),
        ("reserved2", c_char * 16),
        ("throttled", c_uint64),
        ("order", c_uint64),
        ("free_until", c_uint64),
        ("reserved3", c_char * 40),
        ("balance", c_int64),
        ("refilled_at", c_uint64),
        ("refilled", c_uint64),
        ("reserved4", c_char * 296),
    )


class Slot(LittleEndianStructure):
    """Who owns a slot."""

    _fields_ = (
        ("state", c_uint32),
        ("pid", c_uint32),
        ("start_time", c_uint64),
        ("pid_namespace", c_uint64),
        ("image", c_uint64),
        ("attached", c_uint64),
        ("reserved1", c_uint32),
        ("flags", c_uint32),
        ("throttled", c_uint64),
        ("name", c_char * 16),
        ("host", c_uint64),
        ("reserved2", c_char * 48),
    )


class Lane(LittleEndianStructure):
    """The books of one slot on one device; `value[settled & 1]` is the valid sum."""

    _fields_ = (
        ("delta", c_int64),
        ("value", c_uint64 * 2),
        ("settled", c_uint64),
        ("helped", c_uint64),
        ("reserved", c_char * 24),
    )


class Block(LittleEndianStructure):
    """The whole, for offsets and tests: a reader takes it in pieces."""

    _fields_ = (
        ("header", Header),
        ("devices", Device * DEVICES),
        ("slots", Slot * SLOTS),
        ("lanes", (Lane * DEVICES) * SLOTS),
    )


DEVICES_OFFSET = OFFSET + Block.devices.offset
SLOTS_OFFSET = OFFSET + Block.slots.offset
LANES_OFFSET = OFFSET + Block.lanes.offset
BYTES = sizeof(Block)
END = OFFSET + BYTES
