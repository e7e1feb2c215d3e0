"""``memory://``: a complete POSIX tree in this process's memory, for tests and scratch space.

Nothing survives the mount. `memory://?size=BYTES` bounds the contents (ENOSPC beyond); without it
the bound is half of the machine's memory, as tmpfs has it. Holes take memory, too.
"""

from __future__ import annotations

import errno
import os
import stat as st
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, parse_qsl

import trio

from storagecache.backend import Backend, DirectoryStream, File, Properties
from storagecache.errors import BackendError
from storagecache.sizes import parse_size
from storagecache.types import NAME_MAX, Attributes, Changes, Entry, FilesystemStatistics, Owner

from .memory_tree import Node, Tree, physical_memory_bytes, stat_bits

_BLOCK: Final = 4096
_PATH_MAX: Final = 4096
_XATTR_CREATE: Final = 1
_XATTR_REPLACE: Final = 2
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2


class MemoryBackend(Backend):
    """A tree of nodes; every operation is one step between two checkpoints."""

    def __init__(self, size_max: int | None = None) -> None:
        self.properties = Properties(workers=1024)
        self._tree = Tree(size_max if size_max is not None else physical_memory_bytes() // 2)

    @classmethod
    def from_url(cls, url: SplitResult) -> MemoryBackend:
        if url.netloc or url.path.strip("/"):
            raise ValueError("memory:// takes no host and no path")
        size = None
        for key, value in parse_qsl(url.query, keep_blank_values=True):
            if key != "size":
                raise ValueError(f"unknown parameter {key!r} (known: size)")
            try:
                size = parse_size(value)
            except ValueError as exc:
                raise ValueError(f"size: {exc}") from exc
        return cls(size)

    async def stat(self, path: bytes) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._tree.find(path).attributes()

    async def open_directory(self, path: bytes) -> DirectoryStream:
        await trio.lowlevel.checkpoint()
        node = self._tree.find(path)
        if not node.is_directory:
            raise BackendError(errno.ENOTDIR)
        return _MemoryStream(node)

    async def open(self, path: bytes, flags: int) -> File:
        await trio.lowlevel.checkpoint()
        node = self._tree.find(path)
        if node.is_directory:
            raise BackendError(errno.EISDIR)
        if st.S_ISLNK(node.mode):
            raise BackendError(errno.ELOOP)
        if not st.S_ISREG(node.mode):
            raise BackendError(errno.ENXIO)
        if flags & os.O_TRUNC:
            self._tree.resize(node, 0)
        return _MemoryFile(self._tree, node, flags)

    async def create(
        self, path: bytes, flags: int, mode: int, owner: Owner | None
    ) -> tuple[File, Attributes]:
        await trio.lowlevel.checkpoint()
        node = self._tree.add(path, st.S_IFREG | stat_bits(mode), owner)
        return _MemoryFile(self._tree, node, flags), node.attributes()

    async def setattr(self, path: bytes, changes: Changes) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._tree.change(self._tree.find(path), changes)

    async def mkdir(self, path: bytes, mode: int, owner: Owner | None) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._tree.add(path, st.S_IFDIR | stat_bits(mode), owner).attributes()

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner | None) -> Attributes:
        await trio.lowlevel.checkpoint()
        if st.S_ISDIR(mode):
            raise BackendError(errno.EPERM)
        node = self._tree.add(path, mode, owner)
        node.rdev = rdev
        return node.attributes()

    async def symlink(self, path: bytes, target: bytes, owner: Owner | None) -> Attributes:
        await trio.lowlevel.checkpoint()
        if not target or len(target) >= _PATH_MAX:
            raise BackendError(errno.ENAMETOOLONG if target else errno.ENOENT)
        if self._tree.used + len(target) > self._tree.size_max:
            raise BackendError(errno.ENOSPC)
        node = self._tree.add(path, st.S_IFLNK | 0o777, owner)
        node.data[:] = target
        self._tree.used += len(target)
        return node.attributes()

    async def readlink(self, path: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        node = self._tree.find(path)
        if not st.S_ISLNK(node.mode):
            raise BackendError(errno.EINVAL)
        return bytes(node.data)

    async def link(self, old: bytes, new: bytes) -> Attributes:
        await trio.lowlevel.checkpoint()
        node = self._tree.find(old)
        if node.is_directory:
            raise BackendError(errno.EPERM)
        parent, name = self._tree.parent(new)
        if name in parent.children:
            raise BackendError(errno.EEXIST)
        parent.children[name] = node
        node.nlink += 1
        node.ctime_ns = parent.mtime_ns = parent.ctime_ns = self._tree.now()
        return node.attributes()

    async def unlink(self, path: bytes) -> None:
        await trio.lowlevel.checkpoint()
        parent, name = self._tree.parent(path)
        if self._tree.child(parent, name).is_directory:
            raise BackendError(errno.EISDIR)
        self._tree.drop(parent, name)

    async def rmdir(self, path: bytes) -> None:
        await trio.lowlevel.checkpoint()
        parent, name = self._tree.parent(path)
        node = self._tree.child(parent, name)
        if not node.is_directory:
            raise BackendError(errno.ENOTDIR)
        if node.children:
            raise BackendError(errno.ENOTEMPTY)
        self._tree.drop(parent, name)

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        await trio.lowlevel.checkpoint()
        if flags not in (0, _NOREPLACE, _EXCHANGE):
            raise BackendError(errno.EINVAL)
        parent, name = self._tree.parent(old)
        node = self._tree.child(parent, name)
        new_parent, new_name = self._tree.parent(new)
        other = new_parent.children.get(new_name)
        if flags == _NOREPLACE and other is not None:
            raise BackendError(errno.EEXIST)
        if node.is_directory and (new + b"/").startswith(old + b"/") and new != old:
            raise BackendError(errno.EINVAL)
        if flags == _EXCHANGE:
            if other is None:
                raise BackendError(errno.ENOENT)
            if other.is_directory and (old + b"/").startswith(new + b"/") and new != old:
                raise BackendError(errno.EINVAL)
            parent.children[name], new_parent.children[new_name] = other, node
            moved = int(node.is_directory) - int(other.is_directory)
            parent.nlink -= moved
            new_parent.nlink += moved
        else:
            if other is node:
                return
            if other is not None:
                self._tree.check_replace(node, other)
                self._tree.drop(new_parent, new_name)
            del parent.children[name]
            new_parent.children[new_name] = node
            if node.is_directory:
                parent.nlink -= 1
                new_parent.nlink += 1
        now = self._tree.now()
        node.ctime_ns = now
        if flags == _EXCHANGE and other is not None:
            other.ctime_ns = now
        for directory in (parent, new_parent):
            directory.mtime_ns = directory.ctime_ns = now

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        try:
            return self._tree.find(path).xattrs[name]
        except KeyError:
            raise BackendError(errno.ENODATA) from None

    async def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        await trio.lowlevel.checkpoint()
        node = self._tree.find(path)
        if flags & _XATTR_CREATE and name in node.xattrs:
            raise BackendError(errno.EEXIST)
        if flags & _XATTR_REPLACE and name not in node.xattrs:
            raise BackendError(errno.ENODATA)
        node.xattrs[name] = value
        node.ctime_ns = self._tree.now()

    async def listxattr(self, path: bytes) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return list(self._tree.find(path).xattrs)

    async def removexattr(self, path: bytes, name: bytes) -> None:
        await trio.lowlevel.checkpoint()
        node = self._tree.find(path)
        if node.xattrs.pop(name, None) is None:
            raise BackendError(errno.ENODATA)
        node.ctime_ns = self._tree.now()

    async def statfs(self) -> FilesystemStatistics:
        await trio.lowlevel.checkpoint()
        total = self._tree.size_max // _BLOCK
        free = max(0, total - -(-self._tree.used // _BLOCK))
        return FilesystemStatistics(
            _BLOCK, _BLOCK, total, free, free, 1 << 32, 1 << 31, 1 << 31, NAME_MAX
        )

    async def fsync_directory(self, path: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._tree.find(path)

    def statistics(self) -> dict[str, float]:
        return {"memory_bytes": self._tree.used}


class _MemoryFile(File):
    def __init__(self, tree: Tree, node: Node, flags: int) -> None:
        self._tree = tree
        self._node = node
        self._access = flags & os.O_ACCMODE
        node.opened += 1
        self.opened = node.attributes()

    async def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        await trio.lowlevel.checkpoint()
        if self._access == os.O_WRONLY:
            raise BackendError(errno.EBADF)
        start = offset
        with memoryview(self._node.data) as data:
            for buffer in buffers:
                found = data[offset : offset + len(buffer)]
                buffer[: len(found)] = found
                offset += len(found)
                found.release()
        return max(0, offset - start)

    async def write(self, offset: int, data: bytes) -> Attributes:
        await trio.lowlevel.checkpoint()
        if self._access == os.O_RDONLY:
            raise BackendError(errno.EBADF)
        node = self._node
        if not data:  # changes nothing, not even the times
            return node.attributes()
        end = offset + len(data)
        if end > len(node.data):
            self._tree.resize(node, end)
        node.data[offset:end] = data
        return self._tree.change(node, Changes(mtime_ns=time.time_ns()))

    async def stat(self) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._node.attributes()

    async def setattr(self, changes: Changes) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._tree.change(self._node, changes)

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def fsync(self, *, data_only: bool) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._node.opened -= 1
        self._tree.release(self._node)
        await trio.lowlevel.checkpoint()


class _MemoryStream(DirectoryStream):
    def __init__(self, node: Node) -> None:
        self._node = node
        self._names = list(node.children)[::-1]

    async def next(self, entries_max: int) -> list[Entry]:
        await trio.lowlevel.checkpoint()
        entries: list[Entry] = []
        while self._names and len(entries) < entries_max:
            name = self._names.pop()
            child = self._node.children.get(name)
            if child is not None:
                entries.append(Entry(name, child.attributes()))
        return entries

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()
