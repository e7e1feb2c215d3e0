"""Names and attributes: every operation of the mount that does not touch a file's contents."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, TypeVar

import trio

from ..cache import PageCache
from ..errors import BackendError, UnsupportedError
from ..types import NAME_MAX, Attributes, Changes, FilesystemStatistics, Owner
from ..writeback import WriteThrough
from .handles import DirectoryHandle, FileHandle
from .inodes import Inode, Inodes, child_path, path_of
from .stores import Store

T = TypeVar("T")
RENAME_NOREPLACE: Final = 1
RENAME_EXCHANGE: Final = 2
_BATCH_ENTRIES: Final = 512
_STATFS_S: Final = 0.5
_CAPABILITY: Final = b"security.capability"


class Namespace:
    """Lookup, attributes, directories, links, renames and extended attributes.

    All methods raise BackendError. `nursery` runs refreshes of grafts in the background.
    """

    def __init__(
        self,
        cache: PageCache,
        stores: list[Store],
        nursery: trio.Nursery,
        *,
        read_only: bool = False,
        xattrs: bool = True,
    ) -> None:
        self.cache = cache
        self.core = cache.core
        self.stores = stores
        self.inodes = Inodes(self.core.close_object)
        self.writer = WriteThrough(cache)
        self.handles: dict[int, FileHandle | DirectoryHandle] = {}
        self.read_only = read_only
        self.xattrs = xattrs
        self._nursery = nursery
        self._next_handle = 1

    async def start(self) -> None:
        """Ask every backend for its root once; from then on the grafts answer from memory."""
        for store in self.stores:
            attributes = await store.backend.stat(b"")
            self.inodes.learn(self.inodes.graft(store, attributes), attributes)

    # helpers

    def store_of(self, inode: Inode) -> Store:
        """The store of `inode`; EROFS for the synthetic directories, which nobody may change."""
        if inode.store is None:
            raise BackendError(errno.EROFS)
        if self.read_only:
            raise BackendError(errno.EROFS)
        return inode.store

    def _new_handle(self, handle: FileHandle | DirectoryHandle) -> int:
        number = self._next_handle
        self._next_handle += 1
        self.handles[number] = handle
        return number

    async def _by_path(self, inode: Inode, call: Callable[[Store, bytes], Awaitable[T]]) -> T:
        store = inode.store
        assert store is not None
        async with store.paths.shared():
            return await call(store, path_of(inode))

    async def _in_directory(
        self, parent: Inode, name: bytes, call: Callable[[Store, bytes], Awaitable[T]]
    ) -> T:
        """Run `call` with the path of a child; the parent's attributes are old afterwards."""
        store = self.store_of(parent)
        _check_name(name)
        async with store.paths.shared():
            result = await call(store, child_path(parent, name))
        self._touched(parent)
        return result

    def _touched(self, directory: Inode) -> None:
        directory.expires = 0.0
        if directory.is_graft:
            self._refresh(directory)

    def _refresh(self, graft: Inode) -> None:
        store = graft.store
        assert store is not None
        if not store.refreshing:
            store.refreshing = True
            self._nursery.start_soon(self._refresh_task, store, graft)

    async def _refresh_task(self, store: Store, graft: Inode) -> None:
        try:
            with trio.move_on_after(store.timeouts.metadata):
                since = self.inodes.clock
                self.inodes.learn(graft, await store.backend.stat(b""), since)
        except BackendError:
            graft.expires = (
                monotonic() + store.timeouts.attribute
            )  # counted by the meter; ask later
        finally:
            store.refreshing = False

    # attributes

    async def getattr(self, inode: Inode) -> Attributes:
        if inode.store is None or inode.expires > monotonic():
            return inode.attributes
        if inode.is_graft:
            self._refresh(inode)
            return inode.attributes
        return await self._fetch_attributes(inode)

    async def _fetch_attributes(self, inode: Inode) -> Attributes:
        file = _any_file(inode)
        since = self.inodes.clock
        if inode.parent is None and file is not None:
            attributes = await file.source.file.stat()
        else:
            attributes = await self._by_path(inode, lambda store, path: store.backend.stat(path))
            if attributes.object_id != inode.attributes.object_id:
                raise BackendError(errno.ESTALE)
        self.inodes.learn(inode, attributes, since)
        return inode.attributes

    async def setattr(
        self, inode: Inode, changes: Changes, handle: FileHandle | None
    ) -> Attributes:
        self.store_of(inode)
        if handle is None and inode.parent is None and not inode.is_graft:
            handle = _any_file(inode)
        if handle is not None:
            attributes = await handle.source.file.setattr(changes)
        else:
            attributes = await self._by_path(
                inode, lambda store, path: store.backend.setattr(path, changes)
            )
        if changes.size is not None and inode.slot >= 0:
            self.core.truncate(inode.slot, changes.size)
        self.inodes.changed(inode, attributes)
        return attributes

    # names

    async def lookup(self, parent: Inode, name: bytes) -> Inode | None:
        """The inode of a name, with one more lookup; None where there is none."""
        _check_name(name)
        if name == b".":
            found: Inode | None = parent
        elif name == b"..":
            found = parent.parent or parent
        else:
            found = parent.children.get(name)
        if found is not None and (
            found.store is None or found.is_graft or found.expires > monotonic()
        ):
            found.lookups += 1
            return found
        store = parent.store
        if store is None:
            return None
        since = self.inodes.clock
        try:
            async with store.paths.shared():
                attributes = await store.backend.stat(child_path(parent, name))
        except BackendError as exc:
            if exc.errno != errno.ENOENT:
                raise
            if found is not None:
                found.remove_name(parent, name)
            return None
        inode = self.inodes.adopt(parent, name, attributes, since)
        inode.lookups += 1
        return inode

    def _born(self, parent: Inode, name: bytes, attributes: Attributes) -> Inode:
        inode = self.inodes.adopt(parent, name, attributes)
        inode.lookups += 1
        return inode

    async def mkdir(self, parent: Inode, name: bytes, mode: int, owner: Owner) -> Inode:
        attributes = await self._in_directory(
            parent, name, lambda store, path: store.backend.mkdir(path, mode, owner)
        )
        return self._born(parent, name, attributes)

    async def mknod(self, parent: Inode, name: bytes, mode: int, rdev: int, owner: Owner) -> Inode:
        attributes = await self._in_directory(
            parent, name, lambda store, path: store.backend.mknod(path, mode, rdev, owner)
        )
        return self._born(parent, name, attributes)

    async def symlink(self, parent: Inode, name: bytes, target: bytes, owner: Owner) -> Inode:
        attributes = await self._in_directory(
            parent, name, lambda store, path: store.backend.symlink(path, target, owner)
        )
        return self._born(parent, name, attributes)

    async def readlink(self, inode: Inode) -> bytes:
        if inode.store is None:
            raise BackendError(errno.EINVAL)
        return await self._by_path(inode, lambda store, path: store.backend.readlink(path))

    async def link(self, inode: Inode, parent: Inode, name: bytes) -> Inode:
        if inode.store is not parent.store:
            raise BackendError(errno.EXDEV)
        attributes = await self._in_directory(
            parent, name, lambda store, path: store.backend.link(path_of(inode), path)
        )
        return self._born(parent, name, attributes)

    async def unlink(self, parent: Inode, name: bytes) -> None:
        await self._in_directory(parent, name, lambda store, path: store.backend.unlink(path))
        self._name_gone(parent, name)

    async def rmdir(self, parent: Inode, name: bytes) -> None:
        child = parent.children.get(name)
        if child is not None and (child.is_graft or child.store is None):
            raise BackendError(errno.EBUSY)
        await self._in_directory(parent, name, lambda store, path: store.backend.rmdir(path))
        self._name_gone(parent, name)

    def _name_gone(self, parent: Inode, name: bytes) -> None:
        child = parent.children.get(name)
        if child is None:
            return
        child.remove_name(parent, name)
        child.expires = 0.0
        if child.is_directory or child.attributes.nlink <= 1:
            child.attributes = child.attributes._replace(nlink=0)
            self.inodes.unlinked(child)
            self.inodes.drop_if_unused(child)
        else:
            child.attributes = child.attributes._replace(nlink=child.attributes.nlink - 1)

    async def rename(
        self, parent: Inode, name: bytes, new_parent: Inode, new_name: bytes, flags: int
    ) -> None:
        if parent.store is not new_parent.store:
            raise BackendError(errno.EXDEV)
        store = self.store_of(parent)
        _check_name(name)
        _check_name(new_name)
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE):
            raise BackendError(errno.EINVAL)
        moved = parent.children.get(name)
        other = new_parent.children.get(new_name)
        alone = moved is None or moved.is_directory or bool(flags & RENAME_EXCHANGE)
        async with store.paths.alone() if alone else store.paths.shared():
            await store.backend.rename(
                child_path(parent, name), child_path(new_parent, new_name), flags
            )
            self._renamed(parent, name, moved, new_parent, new_name, other, flags)
        self._touched(parent)
        if new_parent is not parent:
            self._touched(new_parent)

    def _renamed(
        self,
        parent: Inode,
        name: bytes,
        moved: Inode | None,
        new_parent: Inode,
        new_name: bytes,
        other: Inode | None,
        flags: int,
    ) -> None:
        if moved is not None and moved is other:
            return  # two names of one object: POSIX leaves both
        if moved is not None:
            moved.remove_name(parent, name)
            moved.expires = 0.0
        if other is not None:
            if flags & RENAME_EXCHANGE:
                other.remove_name(new_parent, new_name)
                other.add_name(parent, name)
                other.expires = 0.0
            else:
                self._name_gone(new_parent, new_name)
        if moved is not None:
            moved.add_name(new_parent, new_name)

    # directories

    async def opendir(self, inode: Inode) -> int:
        if not inode.is_directory:
            raise BackendError(errno.ENOTDIR)
        return self._new_handle(DirectoryHandle(inode))

    async def releasedir(self, number: int) -> None:
        handle = self.handles.pop(number, None)
        if isinstance(handle, DirectoryHandle):
            await handle.rewind()

    async def fsyncdir(self, inode: Inode) -> None:
        if inode.store is not None:
            await self._by_path(inode, lambda store, path: store.backend.fsync_directory(path))

    async def fill(self, handle: DirectoryHandle) -> bool:
        """Read ahead in the stream if nothing is left; False at the directory's end."""
        if not handle.ahead and not handle.ended:
            if handle.stream is None:
                handle.stream = await self._by_path(
                    handle.inode, lambda store, path: store.backend.open_directory(path)
                )
            handle.since = self.inodes.clock
            batch = await handle.stream.next(_BATCH_ENTRIES)
            handle.ended = not batch
            handle.ahead = batch[::-1]
        return bool(handle.ahead)

    def peek(self, handle: DirectoryHandle) -> tuple[bytes, Inode]:
        """The next entry; its inode has no lookup from it yet. `fill` has returned True."""
        entry = handle.ahead[-1]
        return entry.name, self.inodes.adopt(
            handle.inode, entry.name, entry.attributes, handle.since
        )

    def took(self, handle: DirectoryHandle, inode: Inode) -> None:
        """The entry of the last `peek` reached the caller, who has one more lookup now."""
        handle.names.append(handle.ahead.pop().name)
        inode.lookups += 1

    # extended attributes

    def _need_xattrs(self, inode: Inode) -> None:
        if not self.xattrs or inode.store is None:
            raise UnsupportedError
        if not inode.store.backend.properties.xattrs:
            raise UnsupportedError

    async def getxattr(self, inode: Inode, name: bytes) -> bytes:
        self._need_xattrs(inode)
        if name == _CAPABILITY and inode.capability is not None:
            # the kernel asks for this before every write
            if not inode.capability:
                raise BackendError(errno.ENODATA)
            return inode.capability
        try:
            value = await self._by_path(
                inode, lambda store, path: store.backend.getxattr(path, name)
            )
        except BackendError as exc:
            if name == _CAPABILITY and exc.errno == errno.ENODATA:
                inode.capability = b""
            raise
        if name == _CAPABILITY:
            inode.capability = value
        return value

    async def setxattr(self, inode: Inode, name: bytes, value: bytes, flags: int) -> None:
        self._need_xattrs(inode)
        self.store_of(inode)
        inode.capability = None
        await self._by_path(
            inode, lambda store, path: store.backend.setxattr(path, name, value, flags)
        )
        inode.expires = 0.0

    async def listxattr(self, inode: Inode) -> list[bytes]:
        self._need_xattrs(inode)
        return await self._by_path(inode, lambda store, path: store.backend.listxattr(path))

    async def removexattr(self, inode: Inode, name: bytes) -> None:
        self._need_xattrs(inode)
        self.store_of(inode)
        inode.capability = None
        await self._by_path(inode, lambda store, path: store.backend.removexattr(path, name))
        inode.expires = 0.0

    # the rest

    async def statfs(self) -> FilesystemStatistics:
        """The sum over all backends; one that does not answer at once counts as it last did."""
        async with trio.open_nursery() as nursery:
            for store in self.stores:
                nursery.start_soon(self._statfs_of, store)
        known = [store.statfs for store in self.stores if store.statfs is not None]
        unit = 4096

        def total(field: str, factor: bool = True) -> int:
            return sum(
                int(getattr(one, field)) * (one.fragment_bytes if factor else unit) // unit
                for one in known
            )

        return FilesystemStatistics(
            unit,
            unit,
            total("blocks"),
            total("blocks_free"),
            total("blocks_available"),
            total("files", False),
            total("files_free", False),
            total("files_available", False),
            NAME_MAX,
        )

    async def _statfs_of(self, store: Store) -> None:
        with trio.move_on_after(_STATFS_S):
            try:
                store.statfs = await store.backend.statfs()
            except BackendError:
                store.statfs = None  # counted by the meter; its numbers are not known

    def statistics(self) -> dict[str, int]:
        files = sum(isinstance(handle, FileHandle) for handle in self.handles.values())
        return {
            "inodes": len(self.inodes),
            "open_files": files,
            "open_directories": len(self.handles) - files,
            "fetches": self.cache.fetches,
        }


def _any_file(inode: Inode) -> FileHandle | None:
    for handle in inode.files or ():
        assert isinstance(handle, FileHandle)
        return handle
    return None


def _check_name(name: bytes) -> None:
    if len(name) > NAME_MAX:
        raise BackendError(errno.ENAMETOOLONG)
