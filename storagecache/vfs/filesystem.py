"""Files and their contents, on top of the namespace: the whole filesystem as FUSE sees it."""

from __future__ import annotations

import errno
import os
from typing import Final

from ..cache import REQUEST_MAX_BYTES, OpenFile
from ..errors import BackendError, ShortReadError
from ..readahead import Stream
from ..types import Owner
from .handles import DirectoryHandle, FileHandle
from .inodes import Inode, fingerprint
from .namespace import Namespace

_PASSED_FLAGS: Final = os.O_ACCMODE | os.O_TRUNC | os.O_SYNC | os.O_DSYNC | os.O_DIRECT
_WRITING: Final = os.O_WRONLY | os.O_RDWR


class Filesystem(Namespace):
    """Open, create, read, write, sync and release of regular files."""

    readahead_bytes = 4 << 20

    def file(self, number: int) -> FileHandle:
        handle = self.handles.get(number)
        if not isinstance(handle, FileHandle):
            raise BackendError(errno.EBADF)
        return handle

    def directory(self, number: int) -> DirectoryHandle:
        handle = self.handles.get(number)
        if not isinstance(handle, DirectoryHandle):
            raise BackendError(errno.EBADF)
        return handle

    # opening

    async def open(self, inode: Inode, flags: int) -> tuple[int, bool]:
        """A handle, and whether what the kernel has cached of the file is still good.

        Asks the backend for the file's fingerprint (close-to-open): where it changed since the
        pages were cached, they are dropped.
        """
        store = inode.store
        if store is None or inode.is_directory:
            raise BackendError(errno.EISDIR)
        if flags & (_WRITING | os.O_TRUNC):
            self.store_of(inode)
        passed = flags & _PASSED_FLAGS
        since = self.inodes.clock
        source = OpenFile(
            await self._by_path(inode, lambda store, path: store.backend.open(path, passed))
        )
        try:
            attributes = source.file.opened or await source.file.stat()
            if attributes.object_id != inode.attributes.object_id:
                raise BackendError(errno.ESTALE)
        except BaseException:
            await source.release()
            raise
        fresh = fingerprint(attributes)
        same = inode.fingerprint == fresh
        if inode.slot < 0:
            inode.slot = self.core.open_object(store.device.index)
        elif flags & os.O_TRUNC:
            self.core.truncate(inode.slot, 0)
        elif not same:
            self.core.invalidate(inode.slot)
        if flags & os.O_TRUNC:
            self.inodes.changed(inode, attributes)
        else:
            inode.fingerprint = fresh
            self.inodes.learn(inode, attributes, since)
        return self._opened(inode, source), same

    async def create(
        self, parent: Inode, name: bytes, mode: int, flags: int, owner: Owner
    ) -> tuple[int, Inode]:
        """Create and open a file; the inode has one more lookup."""
        passed = flags & _PASSED_FLAGS & ~os.O_TRUNC
        try:
            file, attributes = await self._in_directory(
                parent, name, lambda store, path: store.backend.create(path, passed, mode, owner)
            )
        except BackendError as exc:
            if exc.errno != errno.EEXIST or flags & os.O_EXCL:
                raise
            found = await self.lookup(parent, name)  # somebody else was quicker
            if found is None:
                raise
            try:
                number, _ = await self.open(found, flags)
            except BaseException:
                self.inodes.forget(found, 1)
                raise
            return number, found
        inode = self._born(parent, name, attributes)
        if inode.slot >= 0:
            self.core.invalidate(inode.slot)
        else:
            assert inode.store is not None
            inode.slot = self.core.open_object(inode.store.device.index)
        inode.fingerprint = fingerprint(attributes)
        return self._opened(inode, OpenFile(file)), inode

    def _opened(self, inode: Inode, source: OpenFile) -> int:
        handle = FileHandle(inode, source, Stream(self.readahead_bytes))
        if inode.files is None:
            inode.files = []
        inode.files.append(handle)
        return self._new_handle(handle)

    async def release(self, number: int) -> None:
        handle = self.handles.pop(number, None)
        if not isinstance(handle, FileHandle):
            return
        inode = handle.inode
        assert inode.files is not None
        inode.files.remove(handle)
        if not inode.files:
            inode.files = None
            if inode.parent is None and inode.slot >= 0 and not inode.attributes.nlink:
                self.core.close_object(inode.slot)
                inode.slot = -1
            self.inodes.drop_if_unused(inode)
        await handle.source.release()

    # contents

    def read_now(self, number: int, offset: int, size: int) -> memoryview | bytes | None:
        """The bytes if all of them are in memory, without waiting; else None.

        A memoryview is into the arena: use it before the next await.
        """
        handle = self.handles[number]
        assert isinstance(handle, FileHandle)
        inode = handle.inode
        end = offset + size
        object_size = inode.attributes.size
        if end > object_size:
            end = object_size
            size = end - offset
            if size <= 0:
                return b""
        start = self.core.read(inode.slot, offset, size)
        if start < 0:
            return None
        if end >= handle.stream.trigger:
            self._advance(handle, offset, size)
        return self.cache.view[start : start + size]

    def _advance(self, handle: FileHandle, offset: int, size: int) -> None:
        inode = handle.inode
        object_size = inode.attributes.size
        wanted = handle.stream.advance(offset, size, object_size)
        if wanted is not None and inode.store is not None:
            self.cache.prefetch(
                inode.store.device, handle.source, inode.slot, wanted[0], wanted[1], object_size
            )

    async def read(self, number: int, offset: int, size: int) -> memoryview | bytearray | bytes:
        """The bytes at `offset`, fewer only at the end of the file."""
        handle = self.file(number)
        inode = handle.inode
        assert inode.store is not None
        tried = False
        while True:
            object_size = inode.attributes.size
            wanted = min(size, object_size - offset, REQUEST_MAX_BYTES)
            if wanted <= 0:
                return b""
            self._advance(handle, offset, wanted)
            try:
                return await self.cache.read(
                    inode.store.device, handle.source, inode.slot, offset, wanted, object_size
                )
            except BackendError as exc:
                if tried or not isinstance(exc.__cause__, ShortReadError):
                    raise
                # shorter than its attributes say: changed behind our back, or a bad answer
                tried = True
                attributes = await handle.source.file.stat()
                if attributes.size >= object_size:
                    raise
                self.core.invalidate(inode.slot)
                self.inodes.learn(inode, attributes)
                inode.fingerprint = None

    async def write(self, number: int, offset: int, data: bytes) -> int:
        handle = self.file(number)
        inode = handle.inode
        self.store_of(inode)
        inode.writing += 1
        try:
            attributes = await self.writer.write(handle.source.file, inode.slot, offset, data)
        finally:
            inode.writing -= 1
        if inode.writing and attributes.size < inode.attributes.size:
            # a write that went on beside this one made the file longer since
            attributes = attributes._replace(size=inode.attributes.size)
        self.inodes.changed(inode, attributes)
        return len(data)

    async def flush(self, number: int) -> None:
        await self.writer.flush(self.file(number).source.file)

    async def fsync(self, number: int, *, data_only: bool) -> None:
        await self.writer.fsync(self.file(number).source.file, data_only=data_only)
