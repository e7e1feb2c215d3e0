"""Ids and plain values shared by every module. No I/O, no third-party imports."""

from __future__ import annotations

from typing import NamedTuple, NewType, TypedDict

InodeId = NewType("InodeId", int)  # number of a node in the mounted tree (FUSE node id, st_ino)
ObjectSlot = NewType("ObjectSlot", int)  # 32-bit number of an object in the core
HandleId = NewType("HandleId", int)  # number of an open file or directory of the mount

SECTOR_BYTES = 4096
NAME_MAX = 255


class Attributes(NamedTuple):
    """What stat(2) says of one object of a backend.

    ``object_id`` is unique within its backend, the same for all hard links of an object and stable
    across mounts (``file://``: the inode number, mixed with the device below a nested mount).
    ``version`` is the fingerprint for close-to-open coherence: it changes whenever the contents do
    (``b""``: mtime_ns, ctime_ns and size are the fingerprint).
    """

    object_id: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int
    size: int
    blocks: int  # of 512 bytes
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    version: bytes = b""


class Owner(NamedTuple):
    """Who a new node belongs to."""

    uid: int
    gid: int


class Changes(NamedTuple):
    """What setattr changes; None leaves a field as it is."""

    mode: int | None = None  # permission bits with suid, sgid, sticky
    uid: int | None = None
    gid: int | None = None
    size: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class FilesystemStatistics(NamedTuple):
    """What statvfs(3) says of a backend."""

    block_bytes: int
    fragment_bytes: int
    blocks: int  # of fragment_bytes, as bfree and bavail
    blocks_free: int
    blocks_available: int
    files: int
    files_free: int
    files_available: int
    name_max: int


class Entry(NamedTuple):
    """A directory entry together with its attributes."""

    name: bytes
    attributes: Attributes


class PartitionStatistics(TypedDict):
    """What the core counts for one partition."""

    pages: int  # resident, in-flight included
    target_pages: int
    state: str  # cool | warming | cooling | warm
    hits: int
    misses: int
    evictions: int
    relative_wait: float  # of the last epoch
    demand_requests: int
    response_ns: int  # demand misses only
    busy_ns: int  # all requests: the time the backend was not idle


class Statistics(TypedDict):
    """What the core tells of itself."""

    policy: str
    repartition: str
    capacity_pages: int
    page_bytes: int
    capacity_bytes: int  # memory_bytes as given
    used_bytes: int  # frames taken, in-flight and orphaned included, plus the scratch area
    pinned_pages: int
    filling_pages: int
    orphan_pages: int  # doomed, waiting for their fetch to return
    dirty_bytes: int
    objects: int
    epochs: int
    seed: int
    partitions: list[PartitionStatistics]
