"""What can be wrong with a region, by kind: the kind is a metric's label, the text is for a log line."""

from enum import StrEnum


class Kind(StrEnum):
    """Why a region could not be read."""

    ABSENT = "absent"
    """No such file or directory: the container has not used CUDA yet, or the region was deleted."""
    NOT_READY = "not_ready"
    """The file is being made: it is shorter than a header or its magic is still zero."""
    NOT_DIRECTORY = "not_directory"
    """A link, a file or something else stands where the region's directory belongs."""
    LINK = "link"
    """A symbolic link stands in the file's place, or the file has hard links elsewhere."""
    NOT_REGULAR = "not_regular"
    """A directory, device, FIFO or socket stands in the file's place."""
    SIZE = "size"
    """The size fits no layout."""
    MAGIC = "magic"
    """The first bytes are not a region's."""
    VERSION = "version"
    """A layout or an extension block of a version that is not known here."""
    COUNT = "count"
    """More devices or processes than the layout has room for."""
    STRING = "string"
    """A device UUID that has no end or holds bytes that no UUID has."""
    VALUE = "value"
    """A number that no card could hold, or a total below its parts."""
    CHANGED = "changed"
    """The file shrank while it was read."""
    BUSY = "busy"
    """Opening would have waited for another process (a lease)."""
    LOCKS = "locks"
    """So many record locks that finding the attached processes would take too long."""
    UNREADABLE = "unreadable"
    """The operating system refused: permissions, an input/output error."""
    INTERNAL = "internal"
    """A fault of the program that reads, which its log has."""


class RegionError(Exception):
    """A region that cannot be read: `kind` for counting, the text for people."""

    def __init__(self, kind: Kind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
