"""Reading regions (`usage.cache`): files that tenants can write, so every byte of them is taken as hostile.

`read_region` is the way in. One module a layout (`layout_v0`, `layout_v1`, `extension`), `opening` for the way to the
file, `locks` for who is attached, `model` for what comes out, `errors` for what can be wrong.
"""

from isolator_core.region.errors import Kind, RegionError
from isolator_core.region.model import Device, Memory, Process, Region
from isolator_core.region.opening import open_beneath
from isolator_core.region.reader import read_region

__all__ = ["Device", "Kind", "Memory", "Process", "Region", "RegionError", "open_beneath", "read_region"]
