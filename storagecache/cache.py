"""PageCache: the core decides and holds, this fetches.

One fetch per page however many readers wait; a fetch owns its frames until its backend call has
returned, whatever happened to its readers, and is cancelled only when the mount ends. Between two
awaits everything here is atomic (docs/invariants.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

import trio

from ._core import Cache, Run
from .backend import File
from .errors import BackendError, ShortReadError, StorageCacheError

log = logging.getLogger(__name__)

REQUEST_MAX_BYTES: Final = 1 << 20  # longest read the front may ask for at once
_CLOSE_S: Final = 10.0  # a backend that does not close by then is left to its thread
_PREFETCHES_MAX: Final = 8  # under way at once for one backend


class OpenFile:
    """A backend's open file together with the number of users that keep it open."""

    __slots__ = ("_users", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self._users = 1

    def hold(self) -> None:
        self._users += 1

    async def release(self) -> None:
        """Give up one use; the last one closes the file."""
        self._users -= 1
        if self._users == 0:
            with trio.move_on_after(_CLOSE_S, shield=True):
                await self.file.aclose()


class Device:
    """What the cache keeps for each backend: its order, its limits and how busy it is."""

    __slots__ = ("index", "last_end_ns", "prefetches", "read_max_bytes", "whole_pages")

    def __init__(self, index: int, read_max_bytes: int, *, whole_pages: bool) -> None:
        self.index = index
        self.read_max_bytes = read_max_bytes
        self.whole_pages = whole_pages
        self.last_end_ns = 0
        self.prefetches = 0

    def service_ns(self, start_ns: int, end_ns: int) -> int:
        """The part of [start, end] during which the backend served nobody who came before.

        For a server that takes one request after the other this is its service time; for a
        parallel one the sum over requests is the time it was not idle.
        """
        begin = max(start_ns, self.last_end_ns)
        self.last_end_ns = max(self.last_end_ns, end_ns)
        return max(0, end_ns - begin)


class _Flight:
    """A fetch under way: readers wait for `done`, then look at `error`."""

    __slots__ = ("done", "error", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.done = trio.Event()
        self.error: BaseException | None = None


class PageCache:
    """Reads through the core's page frames.

    `nursery` runs the fetches; `on_epoch` is called after each epoch of the repartitioner.
    """

    def __init__(
        self, core: Cache, nursery: trio.Nursery, *, on_epoch: Callable[[], None] | None = None
    ) -> None:
        self.core = core
        self.view = memoryview(core.arena)
        self._nursery = nursery
        self.on_epoch = on_epoch
        self._flights: dict[int, _Flight] = {}
        self._room = trio.Event()
        self._room_wanted = 0
        self.fetches = 0

    # reading

    async def read(
        self, device: Device, source: OpenFile, slot: int, offset: int, size: int, object_size: int
    ) -> memoryview | bytearray:
        """`size` bytes at `offset`, all of them below `object_size`.

        A memoryview is into the arena and valid until the next call of the core: the caller uses
        it before its next await. Raises BackendError as the fetch did.
        """
        core = self.core
        gathered: bytearray | None = None
        done = 0
        count = True
        while True:
            plan = core.begin_read(
                slot,
                offset + done,
                size - done,
                object_size,
                device.read_max_bytes,
                whole_pages=device.whole_pages,
                count=count,
            )
            if plan.covered == 0:
                await self._wait_for_room()
                continue
            frames = plan.frames
            try:
                flights = [self._start(device, source, slot, run, object_size) for run in plan.runs]
                for frame in plan.joined:
                    flight = self._flights.get(frame)
                    if flight is not None and flight not in flights:
                        flights.append(flight)
                for flight in flights:
                    await flight.done.wait()
                    if flight.error is not None:
                        raise _copy_of(flight.error)
                start = core.gather(frames, offset + done, plan.covered)
                if start < 0:  # a write or truncate doomed the page meanwhile: fetch it again
                    count = False
                    continue
                found = self.view[start : start + plan.covered]
                if gathered is None and plan.covered == size:
                    return found
                if gathered is None:
                    gathered = bytearray(size)
                gathered[done : done + plan.covered] = found
                done += plan.covered
                count = True
                if done == size:
                    return gathered
            finally:
                core.unpin(frames)
                self._made_room()

    def prefetch(
        self, device: Device, source: OpenFile, slot: int, offset: int, size: int, object_size: int
    ) -> None:
        """Start fetching what of [offset, offset + size) is absent, as far as there is room."""
        if device.prefetches >= _PREFETCHES_MAX:
            return
        runs = self.core.begin_prefetch(slot, offset, size, object_size, device.read_max_bytes)
        for run in runs:
            self._start(device, source, slot, run, object_size, demand=False)

    def _start(
        self,
        device: Device,
        source: OpenFile,
        slot: int,
        run: Run,
        object_size: int,
        *,
        demand: bool = True,
    ) -> _Flight:
        flight = _Flight(run)
        for frame in run.frames:
            self._flights[frame] = flight
        source.hold()
        self.fetches += 1
        if not demand:
            device.prefetches += 1
        self._nursery.start_soon(self._fetch, device, source, flight, object_size, demand)
        return flight

    async def _fetch(
        self, device: Device, source: OpenFile, flight: _Flight, object_size: int, demand: bool
    ) -> None:
        run = flight.run
        view = self.view
        buffers = [view[start : start + length] for start, length in run.buffers]
        started_ns = monotonic_ns()
        try:
            got = await source.file.read_into(run.offset, buffers)
            expected = min(run.size, object_size - run.offset)
            if got < expected:
                raise ShortReadError(message=f"{got} of {expected} bytes at offset {run.offset}")
        except Exception as exc:
            flight.error = exc
            self.core.fail(run)
            if not isinstance(exc, StorageCacheError):
                log.exception("fetch failed unexpectedly")
        else:
            ended_ns = monotonic_ns()
            service_ns = device.service_ns(started_ns, ended_ns)
            self.core.complete(run, got, service_ns // max(1, len(run.frames)))
            ended_epoch = self.core.observe(
                device.index, ended_ns - started_ns, service_ns, ended_ns, demand=demand
            )
            if ended_epoch and self.on_epoch is not None:
                self.on_epoch()
        finally:
            for frame in run.frames:
                if self._flights.get(frame) is flight:
                    del self._flights[frame]
            self.fetches -= 1
            if not demand:
                device.prefetches -= 1
            flight.done.set()
            self._made_room()
            await source.release()

    # back-pressure

    async def _wait_for_room(self) -> None:
        self._room_wanted += 1
        try:
            await self._room.wait()
        finally:
            self._room_wanted -= 1

    def _made_room(self) -> None:
        if self._room_wanted:
            self._room.set()
            self._room = trio.Event()


def _copy_of(error: BaseException) -> BackendError:
    """The same failure for one more reader: an exception object carries one traceback only."""
    if isinstance(error, BackendError):
        copy = BackendError(error.errno, str(error))
        copy.__cause__ = error
        return copy
    copy = BackendError(message=f"{type(error).__name__}: {error}")
    copy.__cause__ = error
    return copy
