"""The Rust core: the cache that decides, the store that holds pages, the disk model.

Sizes are bytes, times nanoseconds, `slot` is the 32-bit number of an object (32-bit page numbers).
Every method is synchronous, takes one short lock and never waits.
"""

from collections.abc import Sequence
from typing import Final, final

from typing_extensions import Buffer

from .types import Statistics

__all__ = ["POLICIES", "RELEASE_BUILD", "Cache", "Disk", "Plan", "Run"]

POLICIES: Final[tuple[str, ...]]
RELEASE_BUILD: Final[bool]

@final
class Run:
    """One backend read that a plan asks for: consecutive sectors, possibly of several pages."""

    @property
    def offset(self) -> int: ...  # in the object, sector-aligned
    @property
    def size(self) -> int: ...
    @property
    def frames(self) -> list[int]: ...
    @property
    def buffers(
        self,
    ) -> list[tuple[int, int]]: ...  # (start, length) in the arena, merged when adjacent

@final
class Plan:
    """What `begin_read` decided for the first `covered` bytes of a request."""

    @property
    def covered(self) -> int: ...  # 0: no frame to be had; wait until something is unpinned
    @property
    def frames(self) -> list[int]: ...  # pinned for the caller, one a page, ascending
    @property
    def runs(self) -> list[Run]: ...  # to fetch now; also pinned, for the fetch
    @property
    def joined(self) -> list[int]: ...  # frames that somebody else is fetching

@final
class Cache:
    """Partitions, policy, repartitioner and page frames of one mount."""

    def __new__(
        cls,
        *,
        policy: str,
        memory_bytes: int,
        page_bytes: int,
        backends: int,
        seed: int = 0,
        repartition: str = "wait-balance",  # or "none"
        preset: str = "default",  # default | paper | scaled
        wait: str | None = None,  # busy | response; None: the preset's
        threshold: float | None = None,
        window: int = 1000,
        increment: float = 0.002,
        trend: str = "relative",  # or absolute
        tickets: str = "reciprocal",  # or complement
        clock_insert_bit: bool = False,
        max_epoch_ns: int = 60_000_000_000,
        min_sample: int = 50,
        shares: Sequence[float] | None = None,  # static schemes; None: by service_ns, else equal
        service_ns: Sequence[int] | None = None,  # a priori cost of a miss on each backend
    ) -> Cache:
        """ValueError with one line that starts with the bad parameter's name."""

    @property
    def arena(self) -> Buffer: ...  # memoryview(cache.arena): the whole reserved region
    @property
    def page_bytes(self) -> int: ...

    # objects
    def open_object(self, backend: int) -> int: ...
    def close_object(
        self, slot: int
    ) -> None: ...  # drop its pages; number is reused when no fetch holds one

    # reading
    def read(self, slot: int, offset: int, size: int) -> int:
        """Start of the bytes in the arena if all of them are resident (and count hits), else -1.

        Bytes lie contiguous from there, in place if the frames do, else gathered in the scratch
        area: valid until the next call of any method. size <= 1 MiB; larger: ValueError.
        """
    def begin_read(
        self,
        slot: int,
        offset: int,
        size: int,
        object_size: int,
        read_max_bytes: int,
        *,
        whole_pages: bool = True,
        count: bool = True,
    ) -> Plan: ...
    def begin_prefetch(
        self, slot: int, offset: int, size: int, object_size: int, read_max_bytes: int
    ) -> list[Run]:
        """Like begin_read for absent pages only; no pins but the fetch's, nothing is counted."""
    def gather(self, frames: Sequence[int], offset: int, size: int) -> int:
        """As `read`, from frames the caller has pinned; -1 if one was doomed or is not valid."""
    def unpin(self, frames: Sequence[int]) -> None: ...
    def complete(self, run: Run, bytes_read: int, cost_ns: int) -> bool:
        """The fetch returned: what lies beyond bytes_read becomes zeros, sectors become valid, the
        fetch's pin goes. cost_ns: service time per page. False: pages of the run were doomed."""
    def fail(
        self, run: Run
    ) -> None: ...  # the fetch failed: its pages leave, unpinned frames go free
    def observe(
        self, backend: int, response_ns: int, busy_ns: int, now_ns: int, *, demand: bool
    ) -> bool:
        """A device request ended. True if an epoch ended with it (targets may have moved)."""

    # writing
    def write(self, slot: int, offset: int, data: Buffer) -> None:
        """The backend has taken `data`: update resident sectors; a full page allocates if a frame
        can be had; pages in flight are doomed."""
    def truncate(
        self, slot: int, size: int
    ) -> None: ...  # drop beyond; zero the tail; doom in-flight
    def invalidate(self, slot: int, first_page: int = 0, last_page: int | None = None) -> int: ...
    def mark_dirty(
        self, slot: int, offset: int, size: int
    ) -> None: ...  # whole sectors; resident only
    def mark_clean(self, slot: int, offset: int, size: int) -> None: ...

    # control
    def set_policy(self, policy: str) -> None: ...
    def set_repartition(
        self,
        repartition: str,
        *,
        preset: str = "default",
        wait: str | None = None,
        threshold: float | None = None,
        window: int = 1000,
        increment: float = 0.002,
    ) -> None: ...
    def end_epoch(self, now_ns: int) -> bool: ...  # by command; False if nothing was observed
    def set_targets(self, pages: Sequence[int]) -> None: ...  # sum must be the capacity
    def resize(self, memory_bytes: int) -> None:
        """Evict what must and may go; ValueError if beyond the reserved region or too small."""
    def statistics(self) -> Statistics: ...
    def check_invariants(self) -> None: ...  # AssertionError that names the broken one
    def access(self, slot: int, page: int, cost_ns: int = 1) -> bool:
        """One access without data, for tests and simulators; True on a hit. A miss inserts and
        evicts at once."""
    def resident_pages(self) -> list[tuple[int, int]]: ...  # (slot, page), unordered

@final
class Disk:
    """One-arm disk, first come first served: an IBM 9LZX of any age (FAST'02, Table 2)."""

    def __new__(cls, *, years: float = 0.0, seed: int = 0, seek: str = "average") -> Disk: ...
    years: float
    @property
    def bandwidth_bytes_per_s(self) -> float: ...
    @property
    def seek_ns(self) -> int: ...
    @property
    def rotation_ns(self) -> int: ...  # average; a full turn is twice that
    def service(self, address: int, size: int) -> int:
        """Nanoseconds for a request at byte `address`; on the cylinder before: transfer only."""
    def submit(self, now_ns: int, address: int, size: int) -> tuple[int, int]:
        """FIFO: (start_ns, end_ns) of the request that arrives now."""
