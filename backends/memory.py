"""``memory://``: a complete POSIX tree in this process's memory, for tests and scratch space.

Nothing survives the mount. `memory://?size=BYTES` bounds the contents (ENOSPC beyond).
"""

from __future__ import annotations

import errno
import os
import stat as st
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl

import trio

from storagecache.backend import Backend, DirectoryStream, File, Properties
from storagecache.errors import BackendError
from storagecache.sizes import parse_size
from storagecache.types import NAME_MAX, Attributes, Changes, Entry, FilesystemStatistics, Owner

_BLOCK: Final = 4096
_XATTR_CREATE: Final = 1
_XATTR_REPLACE: Final = 2
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2


@dataclass(eq=False, slots=True)
class _Node:
    number: int
    mode: int
    uid: int
    gid: int
    rdev: int = 0
    nlink: int = 1
    data: bytearray = field(default_factory=bytearray)
    children: dict[bytes, _Node] = field(default_factory=dict)
    xattrs: dict[bytes, bytes] = field(default_factory=dict)
    atime_ns: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0

    @property
    def is_directory(self) -> bool:
        return st.S_ISDIR(self.mode)

    def attributes(self) -> Attributes:
        return Attributes(
            self.number,
            self.mode,
            self.nlink,
            self.uid,
            self.gid,
            self.rdev,
            len(self.data),
            -(-len(self.data) // 512),
            self.atime_ns,
            self.mtime_ns,
            self.ctime_ns,
        )


class MemoryBackend(Backend):
    """A tree of nodes; every operation is one step between two checkpoints."""

    def __init__(self, size_max: int | None = None) -> None:
        self.properties = Properties(workers=1024)
        self._size_max = size_max
        self._used = 0
        self._next = 1
        self._last_ns = 0
        self._root = self._new(st.S_IFDIR | 0o755, None)
        self._root.nlink = 2

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

    # nodes

    def _now(self) -> int:
        self._last_ns = max(self._last_ns + 1, time.time_ns())  # two changes never look like one
        return self._last_ns

    def _new(self, mode: int, owner: Owner | None) -> _Node:
        uid, gid = owner if owner is not None else (os.geteuid(), os.getegid())
        node = _Node(self._next, mode, uid, gid)
        self._next += 1
        node.atime_ns = node.mtime_ns = node.ctime_ns = self._now()
        return node

    def _find(self, path: bytes) -> _Node:
        node = self._root
        if path:
            for name in path.split(b"/"):
                node = self._child(node, name)
        return node

    @staticmethod
    def _child(node: _Node, name: bytes) -> _Node:
        if not node.is_directory:
            raise BackendError(errno.ENOTDIR)
        if len(name) > NAME_MAX:
            raise BackendError(errno.ENAMETOOLONG)
        try:
            return node.children[name]
        except KeyError:
            raise BackendError(errno.ENOENT) from None

    def _parent(self, path: bytes) -> tuple[_Node, bytes]:
        directory, _, name = path.rpartition(b"/")
        parent = self._find(directory)
        if not parent.is_directory:
            raise BackendError(errno.ENOTDIR)
        if not name:
            raise BackendError(errno.EBUSY)
        if len(name) > NAME_MAX:
            raise BackendError(errno.ENAMETOOLONG)
        return parent, name

    def _add(self, path: bytes, mode: int, owner: Owner | None) -> _Node:
        parent, name = self._parent(path)
        if name in parent.children:
            raise BackendError(errno.EEXIST)
        if parent is not self._root and parent.nlink == 0:
            raise BackendError(errno.ENOENT)
        node = self._new(mode, owner)
        if parent.mode & st.S_ISGID:
            node.gid = parent.gid
            if node.is_directory:
                node.mode |= st.S_ISGID
        if node.is_directory:
            node.nlink = 2
            parent.nlink += 1
        parent.children[name] = node
        parent.mtime_ns = parent.ctime_ns = node.ctime_ns
        return node

    def _drop(self, parent: _Node, name: bytes) -> None:
        node = parent.children.pop(name)
        now = self._now()
        parent.mtime_ns = parent.ctime_ns = node.ctime_ns = now
        if node.is_directory:
            node.nlink = 0
            parent.nlink -= 1
        else:
            node.nlink -= 1

    def resize(self, node: _Node, size: int) -> None:
        """Make a file `size` bytes long; ENOSPC over the bound."""
        grow = size - len(node.data)
        if grow > 0:
            if self._size_max is not None and self._used + grow > self._size_max:
                raise BackendError(errno.ENOSPC)
            node.data.extend(bytes(grow))
        elif grow < 0:
            del node.data[size:]
        self._used += grow
        node.mtime_ns = node.ctime_ns = self._now()

    def change(self, node: _Node, changes: Changes) -> Attributes:
        """Apply setattr to a node."""
        if changes.mode is not None and st.S_ISLNK(node.mode):
            raise BackendError(errno.ENOTSUP)
        if changes.size is not None and not st.S_ISREG(node.mode):
            raise BackendError(errno.EISDIR if node.is_directory else errno.EINVAL)
        if changes.uid is not None or changes.gid is not None:
            node.uid = node.uid if changes.uid is None else changes.uid
            node.gid = node.gid if changes.gid is None else changes.gid
            if not node.is_directory:
                node.mode &= ~st.S_ISUID
                if node.mode & st.S_IXGRP:
                    node.mode &= ~st.S_ISGID
        if changes.mode is not None:
            node.mode = st.S_IFMT(node.mode) | stat_bits(changes.mode)
        if changes.size is not None:
            self.resize(node, changes.size)
        if changes.atime_ns is not None:
            node.atime_ns = changes.atime_ns
        if changes.mtime_ns is not None:
            node.mtime_ns = changes.mtime_ns
        node.ctime_ns = self._now()
        return node.attributes()

    # operations

    async def stat(self, path: bytes) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._find(path).attributes()

    async def open_directory(self, path: bytes) -> DirectoryStream:
        await trio.lowlevel.checkpoint()
        node = self._find(path)
        if not node.is_directory:
            raise BackendError(errno.ENOTDIR)
        return _MemoryStream(node)

    async def open(self, path: bytes, flags: int) -> File:
        await trio.lowlevel.checkpoint()
        node = self._find(path)
        if node.is_directory:
            raise BackendError(errno.EISDIR)
        if st.S_ISLNK(node.mode):
            raise BackendError(errno.ELOOP)
        if flags & os.O_TRUNC:
            self.resize(node, 0)
        return _MemoryFile(self, node)

    async def create(
        self, path: bytes, flags: int, mode: int, owner: Owner | None
    ) -> tuple[File, Attributes]:
        await trio.lowlevel.checkpoint()
        node = self._add(path, st.S_IFREG | stat_bits(mode), owner)
        return _MemoryFile(self, node), node.attributes()

    async def setattr(self, path: bytes, changes: Changes) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self.change(self._find(path), changes)

    async def mkdir(self, path: bytes, mode: int, owner: Owner | None) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._add(path, st.S_IFDIR | stat_bits(mode), owner).attributes()

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner | None) -> Attributes:
        await trio.lowlevel.checkpoint()
        node = self._add(path, mode, owner)
        node.rdev = rdev
        return node.attributes()

    async def symlink(self, path: bytes, target: bytes, owner: Owner | None) -> Attributes:
        await trio.lowlevel.checkpoint()
        node = self._add(path, st.S_IFLNK | 0o777, owner)
        node.data[:] = target
        return node.attributes()

    async def readlink(self, path: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        node = self._find(path)
        if not st.S_ISLNK(node.mode):
            raise BackendError(errno.EINVAL)
        return bytes(node.data)

    async def link(self, old: bytes, new: bytes) -> Attributes:
        await trio.lowlevel.checkpoint()
        node = self._find(old)
        if node.is_directory:
            raise BackendError(errno.EPERM)
        parent, name = self._parent(new)
        if name in parent.children:
            raise BackendError(errno.EEXIST)
        parent.children[name] = node
        node.nlink += 1
        node.ctime_ns = parent.mtime_ns = parent.ctime_ns = self._now()
        return node.attributes()

    async def unlink(self, path: bytes) -> None:
        await trio.lowlevel.checkpoint()
        parent, name = self._parent(path)
        if self._child(parent, name).is_directory:
            raise BackendError(errno.EISDIR)
        self._drop(parent, name)

    async def rmdir(self, path: bytes) -> None:
        await trio.lowlevel.checkpoint()
        parent, name = self._parent(path)
        node = self._child(parent, name)
        if not node.is_directory:
            raise BackendError(errno.ENOTDIR)
        if node.children:
            raise BackendError(errno.ENOTEMPTY)
        self._drop(parent, name)

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        await trio.lowlevel.checkpoint()
        if flags not in (0, _NOREPLACE, _EXCHANGE):
            raise BackendError(errno.EINVAL)
        parent, name = self._parent(old)
        node = self._child(parent, name)
        new_parent, new_name = self._parent(new)
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
                self._check_replace(node, other)
                self._drop(new_parent, new_name)
            del parent.children[name]
            new_parent.children[new_name] = node
            if node.is_directory:
                parent.nlink -= 1
                new_parent.nlink += 1
        now = self._now()
        node.ctime_ns = now
        for directory in (parent, new_parent):
            directory.mtime_ns = directory.ctime_ns = now

    @staticmethod
    def _check_replace(node: _Node, other: _Node) -> None:
        if node.is_directory and not other.is_directory:
            raise BackendError(errno.ENOTDIR)
        if other.is_directory and not node.is_directory:
            raise BackendError(errno.EISDIR)
        if other.children:
            raise BackendError(errno.ENOTEMPTY)

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        try:
            return self._find(path).xattrs[name]
        except KeyError:
            raise BackendError(errno.ENODATA) from None

    async def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        await trio.lowlevel.checkpoint()
        node = self._find(path)
        if flags & _XATTR_CREATE and name in node.xattrs:
            raise BackendError(errno.EEXIST)
        if flags & _XATTR_REPLACE and name not in node.xattrs:
            raise BackendError(errno.ENODATA)
        node.xattrs[name] = value
        node.ctime_ns = self._now()

    async def listxattr(self, path: bytes) -> list[bytes]:
        await trio.lowlevel.checkpoint()
        return list(self._find(path).xattrs)

    async def removexattr(self, path: bytes, name: bytes) -> None:
        await trio.lowlevel.checkpoint()
        node = self._find(path)
        if node.xattrs.pop(name, None) is None:
            raise BackendError(errno.ENODATA)
        node.ctime_ns = self._now()

    async def statfs(self) -> FilesystemStatistics:
        await trio.lowlevel.checkpoint()
        total = (self._size_max if self._size_max is not None else 1 << 40) // _BLOCK
        free = max(0, total - -(-self._used // _BLOCK))
        return FilesystemStatistics(
            _BLOCK, _BLOCK, total, free, free, 1 << 32, 1 << 31, 1 << 31, NAME_MAX
        )

    async def fsync_directory(self, path: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._find(path)

    def statistics(self) -> dict[str, float]:
        return {"memory_bytes": self._used}


def stat_bits(mode: int) -> int:
    """Permission bits with suid, sgid and sticky."""
    return mode & 0o7777


class _MemoryFile(File):
    def __init__(self, backend: MemoryBackend, node: _Node) -> None:
        self._backend = backend
        self._node = node
        self.opened = node.attributes()

    async def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        await trio.lowlevel.checkpoint()
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
        node = self._node
        end = offset + len(data)
        if end > len(node.data):
            self._backend.resize(node, end)
        node.data[offset:end] = data
        return self._backend.change(node, Changes(mtime_ns=time.time_ns()))

    async def stat(self) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._node.attributes()

    async def setattr(self, changes: Changes) -> Attributes:
        await trio.lowlevel.checkpoint()
        return self._backend.change(self._node, changes)

    async def flush(self) -> None:
        await trio.lowlevel.checkpoint()

    async def fsync(self, *, data_only: bool) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


class _MemoryStream(DirectoryStream):
    def __init__(self, node: _Node) -> None:
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
