"""The FUSE front: pyfuse3.Operations over the filesystem.

Every handler is behind one guard: errors become errnos, a deadline ends every wait, and nothing
else ever leaves a handler (it would end the mount). Reads of resident pages go around the guard's
cancel scope: they never wait. The only importer of pyfuse3, the only place with FUSEError.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat as st
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter_ns
from typing import Any, Final, TypeVar, cast

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext

from .errors import StorageCacheError
from .metrics import FrontStatistics
from .types import Changes, Owner
from .vfs import Filesystem, Inode

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

MAX_TASKS: Final = 10_000


def guarded(op: str, *, by: str = "inode", data: bool = False) -> Callable[[F], F]:
    """A handler whose first argument is an inode number, a handle number, or neither (`by`).

    `data`: under the backend's deadline for data, not the one for metadata.
    """

    def decorate(handler: F) -> F:
        @functools.wraps(handler)
        async def guard(self: Front, *args: Any) -> Any:
            started = perf_counter_ns()
            try:
                with trio.move_on_after(self.deadline(by, args, data=data)):
                    return await handler(self, *args)
                raise FUSEError(errno.ETIMEDOUT)
            except FUSEError:
                raise
            except StorageCacheError as exc:
                raise FUSEError(exc.errno) from None
            except Exception:
                self.failed(op)
                raise FUSEError(errno.EIO) from None
            finally:
                self.statistics.histogram(op).observe(perf_counter_ns() - started)

        return cast(F, guard)

    return decorate


class Front(pyfuse3.Operations):
    """One mount as pyfuse3 sees it."""

    supports_dot_lookup = True
    enable_writeback_cache = False
    enable_acl = False

    def __init__(
        self, filesystem: Filesystem, statistics: FrontStatistics, *, kernel_cache: bool
    ) -> None:
        super().__init__()
        self.filesystem = filesystem
        self.statistics = statistics
        self.kernel_cache = kernel_cache
        self._read_times = statistics.histogram("read")
        self._longest_metadata = max(
            (store.timeouts.metadata for store in filesystem.stores), default=10.0
        )

    # guard's side

    def deadline(self, by: str, args: tuple[Any, ...], *, data: bool) -> float:
        """Seconds this request may take."""
        inode: Inode | None = None
        if by == "inode":
            inode = self.filesystem.inodes.by_number.get(args[0])
        elif by == "handle":
            handle = self.filesystem.handles.get(args[0])
            inode = handle.inode if handle is not None else None
        if inode is None or inode.store is None:
            return self._longest_metadata
        timeouts = inode.store.timeouts
        return timeouts.data if data else timeouts.metadata

    def failed(self, op: str) -> None:
        """An exception that should not be: logged and counted, the caller gets EIO."""
        log.exception("%s failed unexpectedly", op)
        self.statistics.failures[op] = self.statistics.failures.get(op, 0) + 1

    # attributes

    def _attributes(self, inode: Inode) -> EntryAttributes:
        attributes = inode.attributes
        entry = EntryAttributes()
        entry.st_ino = inode.number
        entry.st_mode = attributes.mode
        entry.st_nlink = attributes.nlink
        entry.st_uid = attributes.uid
        entry.st_gid = attributes.gid
        entry.st_rdev = attributes.rdev
        entry.st_size = attributes.size
        entry.st_blocks = attributes.blocks
        entry.st_blksize = self.filesystem.core.page_bytes
        entry.st_atime_ns = attributes.atime_ns
        entry.st_mtime_ns = attributes.mtime_ns
        entry.st_ctime_ns = attributes.ctime_ns
        store = inode.store
        if store is None or store.root is inode:
            entry.attr_timeout = 0.0
            entry.entry_timeout = 1.0
        else:
            entry.attr_timeout = store.timeouts.attribute
            entry.entry_timeout = store.timeouts.entry
        return entry

    def _inode(self, number: int) -> Inode:
        return self.filesystem.inodes.get(number)

    @guarded("getattr")
    async def getattr(self, inode: int, ctx: RequestContext) -> EntryAttributes:
        node = self._inode(inode)
        await self.filesystem.getattr(node)
        return self._attributes(node)

    @guarded("setattr", data=True)
    async def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        node = self._inode(inode)
        changes = Changes(
            mode=st.S_IMODE(attr.st_mode) if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        handle = self.filesystem.file(fh) if fh is not None else None
        await self.filesystem.setattr(node, changes, handle)
        return self._attributes(node)

    @guarded("access")
    async def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        node = self._inode(inode)
        attributes = await self.filesystem.getattr(node)
        if ctx.uid == 0:
            executable = node.is_directory or attributes.mode & 0o111
            return bool(executable) or not mode & os.X_OK
        if ctx.uid == attributes.uid:
            granted = attributes.mode >> 6
        elif ctx.gid == attributes.gid or attributes.gid in _groups(ctx):
            granted = attributes.mode >> 3
        else:
            granted = attributes.mode
        return mode & ~granted & 7 == 0

    # names

    @guarded("lookup")
    async def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        parent = self._inode(parent_inode)
        found = await self.filesystem.lookup(parent, name)
        if found is not None:
            return self._attributes(found)
        negative = parent.store.timeouts.negative if parent.store is not None else 0.0
        if negative <= 0:
            raise FUSEError(errno.ENOENT)
        entry = EntryAttributes()
        entry.st_ino = 0  # the kernel remembers that there is nothing
        entry.entry_timeout = negative
        return entry

    @guarded("forget", by="none")
    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        inodes = self.filesystem.inodes
        for number, count in inode_list:
            node = inodes.by_number.get(number)
            if node is not None:
                inodes.forget(node, count)

    @guarded("readlink")
    async def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        return await self.filesystem.readlink(self._inode(inode))

    @guarded("mknod")
    async def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        parent = self._inode(parent_inode)
        return self._attributes(
            await self.filesystem.mknod(parent, name, mode, rdev, Owner(ctx.uid, ctx.gid))
        )

    @guarded("mkdir")
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        parent = self._inode(parent_inode)
        return self._attributes(
            await self.filesystem.mkdir(parent, name, mode, Owner(ctx.uid, ctx.gid))
        )

    @guarded("symlink")
    async def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        parent = self._inode(parent_inode)
        return self._attributes(
            await self.filesystem.symlink(parent, name, target, Owner(ctx.uid, ctx.gid))
        )

    @guarded("link")
    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        node = self._inode(inode)
        parent = self._inode(new_parent_inode)
        return self._attributes(await self.filesystem.link(node, parent, new_name))

    @guarded("unlink")
    async def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        await self.filesystem.unlink(self._inode(parent_inode), name)

    @guarded("rmdir")
    async def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        await self.filesystem.rmdir(self._inode(parent_inode), name)

    @guarded("rename")
    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        await self.filesystem.rename(
            self._inode(parent_inode_old), name_old, self._inode(parent_inode_new), name_new, flags
        )

    # files

    def _info(self, number: int, *, keep_cache: bool) -> FileInfo:
        return FileInfo(
            fh=number, direct_io=not self.kernel_cache, keep_cache=self.kernel_cache and keep_cache
        )

    @guarded("open")
    async def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        number, same = await self.filesystem.open(self._inode(inode), flags)
        return self._info(number, keep_cache=same)

    @guarded("create")
    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        number, inode = await self.filesystem.create(
            self._inode(parent_inode), name, mode, flags, Owner(ctx.uid, ctx.gid)
        )
        return self._info(number, keep_cache=False), self._attributes(inode)

    async def read(self, fh: int, off: int, size: int) -> Any:
        started = perf_counter_ns()
        try:
            found = self.filesystem.read_now(fh, off, size)
        except Exception:
            self.failed("read")
            raise FUSEError(errno.EIO) from None
        if found is None:
            return await self._read_slowly(fh, off, size)
        times = self._read_times
        duration = perf_counter_ns() - started
        times.counts[duration.bit_length()] += 1
        times.total_ns += duration
        return found

    @guarded("read", by="handle", data=True)
    async def _read_slowly(self, fh: int, off: int, size: int) -> Any:
        return await self.filesystem.read(fh, off, size)

    @guarded("write", by="handle", data=True)
    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return await self.filesystem.write(fh, off, buf)

    @guarded("flush", by="handle", data=True)
    async def flush(self, fh: int) -> None:
        await self.filesystem.flush(fh)

    @guarded("fsync", by="handle", data=True)
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self.filesystem.fsync(fh, data_only=datasync)

    @guarded("release", by="handle", data=True)
    async def release(self, fh: int) -> None:
        await self.filesystem.release(fh)

    # directories

    @guarded("opendir")
    async def opendir(self, inode: int, ctx: RequestContext) -> int:
        return await self.filesystem.opendir(self._inode(inode))

    @guarded("readdir", by="handle")
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Position 0 is ``.``, position 1 ``..``, then the entries in the backend's order."""
        filesystem = self.filesystem
        handle = filesystem.directory(fh)
        directory = handle.inode
        position = start_id
        for own, node in ((b".", directory), (b"..", directory.parent or directory)):
            if position == (own == b".."):
                position += 1
                if not pyfuse3.readdir_reply(token, own, self._attributes(node), position):
                    return
        if directory.store is None:
            for name, node in sorted(directory.children.items())[position - 2 :]:
                position += 1
                if not pyfuse3.readdir_reply(token, name, self._attributes(node), position):
                    return
                node.lookups += 1
            return
        if position - 2 == 0 and handle.names:
            await handle.rewind()
        while position - 2 < len(handle.names):  # the caller went back
            name = handle.names[position - 2]
            position += 1
            found = await filesystem.lookup(directory, name)
            if found is None:
                continue  # gone meanwhile
            if not pyfuse3.readdir_reply(token, name, self._attributes(found), position):
                filesystem.inodes.forget(found, 1)
                return
        if await filesystem.fill(handle):
            while handle.ahead:
                name, node = filesystem.peek(handle)
                position += 1
                if not pyfuse3.readdir_reply(token, name, self._attributes(node), position):
                    filesystem.inodes.drop_if_unused(node)
                    return
                filesystem.took(handle, node)

    @guarded("releasedir", by="handle")
    async def releasedir(self, fh: int) -> None:
        await self.filesystem.releasedir(fh)

    @guarded("fsyncdir", by="handle", data=True)
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self.filesystem.fsyncdir(self.filesystem.directory(fh).inode)

    # extended attributes

    @guarded("getxattr")
    async def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        return await self.filesystem.getxattr(self._inode(inode), name)

    @guarded("setxattr")
    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        await self.filesystem.setxattr(self._inode(inode), name, value, 0)

    @guarded("listxattr")
    async def listxattr(self, inode: int, ctx: RequestContext) -> Sequence[bytes]:
        return await self.filesystem.listxattr(self._inode(inode))

    @guarded("removexattr")
    async def removexattr(self, inode: int, name: bytes, ctx: RequestContext) -> None:
        await self.filesystem.removexattr(self._inode(inode), name)

    # the rest

    @guarded("statfs", by="none")
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        total = await self.filesystem.statfs()
        data = pyfuse3.StatvfsData()
        data.f_bsize = total.block_bytes
        data.f_frsize = total.fragment_bytes
        data.f_blocks = total.blocks
        data.f_bfree = total.blocks_free
        data.f_bavail = total.blocks_available
        data.f_files = total.files
        data.f_ffree = total.files_free
        data.f_favail = total.files_available
        data.f_namemax = total.name_max
        return data


def _groups(ctx: RequestContext) -> set[int]:
    return set(pyfuse3.get_sup_groups(ctx.pid))


def start(front: Front, mountpoint: str, options: set[str]) -> None:
    """Mount. Raises RuntimeError where the kernel or libfuse refuses."""
    pyfuse3.init(front, mountpoint, options | (pyfuse3.default_options - {"default_permissions"}))


async def serve() -> None:
    """Answer requests until the filesystem is unmounted or `stop` was called."""
    await pyfuse3.main(min_tasks=1, max_tasks=MAX_TASKS)


def stop() -> None:
    """Let `serve` return."""
    pyfuse3.terminate()


def close(*, unmount: bool) -> None:
    """Free libfuse's session and, if asked, unmount."""
    pyfuse3.close(unmount=unmount)
