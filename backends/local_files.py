"""Open files and directories of ``file://``.

A thread that its caller abandoned still works on the descriptor. So a descriptor is closed only
when no call is inside it: a late write must never hit the file that got the same number next.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from storagecache.backend import DirectoryStream, File, Limiter
from storagecache.types import Attributes, Changes, Entry

_IOV_MAX: Final = 1024
_DIRECT_BYTES: Final = 4096  # alignment of O_DIRECT; a store that wants more gets buffered reads
ToAttributes = Callable[[os.stat_result], Attributes]


class Descriptor:
    """A descriptor that outlives the calls inside it and is closed exactly once."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.before_close: Callable[[], None] | None = None
        self._lock = threading.Lock()
        self._users = 0
        self._closing = False

    @contextmanager
    def used(self) -> Iterator[int]:
        """The number, safe from being closed within; EBADF after `close`."""
        with self._lock:
            if self._closing:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._users += 1
        try:
            yield self._number
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._closing and self._users == 0
        if last:
            self._close_now()

    def close(self) -> None:
        """Close it now or, if calls are inside, when the last of them leaves."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            idle = self._users == 0
        if idle:
            self._close_now()

    def _close_now(self) -> None:
        try:
            if self.before_close is not None:
                self.before_close()
        finally:
            os.close(self._number)

    def __del__(self) -> None:
        self.close()  # of an abandoned open, that nobody got


def times_of(changes: Changes, status: os.stat_result) -> tuple[int, int]:
    """Both times as utime(2) wants them; a time that does not change keeps its value."""
    return (
        status.st_atime_ns if changes.atime_ns is None else changes.atime_ns,
        status.st_mtime_ns if changes.mtime_ns is None else changes.mtime_ns,
    )


def _read_up_to(descriptor: int, offset: int, buffers: list[memoryview], multiple: int) -> int:
    """Fill the buffers; a count that is no multiple of `multiple` is the end of the file."""
    start = offset
    while buffers:
        got = os.preadv(descriptor, buffers[:_IOV_MAX], offset)
        offset += got
        if got == 0 or got % multiple:
            break
        while buffers and got >= len(buffers[0]):
            got -= len(buffers[0])
            del buffers[0]
        if got:
            buffers[0] = buffers[0][got:]
    return offset - start


def _aligned(offset: int, buffers: Sequence[memoryview]) -> bool:
    return offset % _DIRECT_BYTES == 0 and all(
        len(buffer) % _DIRECT_BYTES == 0
        and ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % _DIRECT_BYTES == 0
        for buffer in buffers
    )


def _read_direct(descriptor: int, offset: int, buffers: list[memoryview]) -> int:
    """As `_read_up_to` for O_DIRECT, by a bounce buffer where the request is not aligned."""
    if _aligned(offset, buffers):
        return _read_up_to(descriptor, offset, buffers, _DIRECT_BYTES)
    wanted = sum(len(buffer) for buffer in buffers)
    begin = offset - offset % _DIRECT_BYTES
    end = -(-(offset + wanted) // _DIRECT_BYTES) * _DIRECT_BYTES
    with mmap.mmap(-1, end - begin) as bounce:
        with memoryview(bounce) as view, view[:] as whole:
            found = begin + _read_up_to(descriptor, begin, [whole], _DIRECT_BYTES)
        got = max(0, min(found - offset, wanted))
        at, left = offset - begin, got
        for buffer in buffers:
            part = min(len(buffer), left)
            buffer[:part] = bounce[at : at + part]
            at += part
            left -= part
    return got


class LocalFile(File):
    """An open file: one descriptor. `direct`: it was opened with O_DIRECT, for reading only."""

    def __init__(
        self, attributes: ToAttributes, limiter: Limiter, descriptor: Descriptor, *, direct: bool
    ) -> None:
        self._attributes = attributes
        self._limiter = limiter
        self._descriptor = descriptor
        self._direct = direct
        self.opened: Attributes = self._stat()

    async def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        return await self._limiter.run(self._read, offset, [b for b in buffers if len(b)])

    def _read(self, offset: int, buffers: list[memoryview]) -> int:
        with self._descriptor.used() as descriptor:
            if self._direct:
                try:
                    return _read_direct(descriptor, offset, list(buffers))
                except OSError as exc:
                    if exc.errno != errno.EINVAL:
                        raise
                self._direct = False  # the store wants another alignment
                flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            got = _read_up_to(descriptor, offset, list(buffers), 1)
            if got:  # cached once, not twice; what the kernel read ahead beyond it stays
                os.posix_fadvise(descriptor, offset, got, os.POSIX_FADV_DONTNEED)
            return got

    async def write(self, offset: int, data: bytes) -> Attributes:
        return await self._limiter.run(self._write, offset, data)

    def _write(self, offset: int, data: bytes) -> Attributes:
        view = memoryview(data)
        with self._descriptor.used() as descriptor:
            while view:
                put = os.pwrite(descriptor, view, offset)
                offset += put
                view = view[put:]
            return self._attributes(os.fstat(descriptor))

    def _stat(self) -> Attributes:
        with self._descriptor.used() as descriptor:
            return self._attributes(os.fstat(descriptor))

    async def stat(self) -> Attributes:
        return await self._limiter.run(self._stat)

    async def setattr(self, changes: Changes) -> Attributes:
        return await self._limiter.run(self._setattr, changes)

    def _setattr(self, changes: Changes) -> Attributes:
        with self._descriptor.used() as descriptor:
            if changes.uid is not None or changes.gid is not None:
                os.fchown(
                    descriptor,
                    -1 if changes.uid is None else changes.uid,
                    -1 if changes.gid is None else changes.gid,
                )
            if changes.mode is not None:
                os.fchmod(descriptor, changes.mode)
            if changes.size is not None:
                os.ftruncate(descriptor, changes.size)
            if changes.atime_ns is not None or changes.mtime_ns is not None:
                os.utime(descriptor, ns=times_of(changes, os.fstat(descriptor)))
            return self._attributes(os.fstat(descriptor))

    async def flush(self) -> None:
        def flush() -> None:
            with self._descriptor.used() as descriptor:
                os.close(os.dup(descriptor))  # reports what a close would (NFS, quotas)

        await self._limiter.run(flush)

    async def fsync(self, *, data_only: bool) -> None:
        def sync() -> None:
            with self._descriptor.used() as descriptor:
                (os.fdatasync if data_only else os.fsync)(descriptor)

        await self._limiter.run(sync)

    async def aclose(self) -> None:
        try:
            await self._limiter.run(self._descriptor.close)
        finally:
            self._descriptor.close()  # where the caller was cancelled before a thread had it


class LocalStream(DirectoryStream):
    """An open directory. Two descriptors: scandir(3) duplicates the one it gets."""

    def __init__(self, attributes: ToAttributes, limiter: Limiter, descriptor: Descriptor) -> None:
        self._attributes = attributes
        self._limiter = limiter
        self._descriptor = descriptor
        self._turn = threading.Lock()  # readdir(3) is for one thread, an abandoned one included
        with descriptor.used() as number:
            self._entries = os.scandir(number)
        descriptor.before_close = self._entries.close

    async def next(self, entries_max: int) -> list[Entry]:
        return await self._limiter.run(self._next, entries_max)

    def _next(self, entries_max: int) -> list[Entry]:
        entries: list[Entry] = []
        with self._turn, self._descriptor.used():
            while len(entries) < entries_max:
                found = next(self._entries, None)
                if found is None:
                    break
                try:
                    status = found.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # gone meanwhile
                entries.append(Entry(os.fsencode(found.name), self._attributes(status)))
        return entries

    async def aclose(self) -> None:
        try:
            await self._limiter.run(self._descriptor.close)
        finally:
            self._descriptor.close()
