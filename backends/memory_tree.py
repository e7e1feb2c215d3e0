"""The tree of ``memory://``: nodes, names, link counts and space, without waiting or awaiting."""

from __future__ import annotations

import errno
import os
import stat as st
import time
from dataclasses import dataclass, field

from storagecache.errors import BackendError
from storagecache.types import NAME_MAX, Attributes, Changes, Owner


def stat_bits(mode: int) -> int:
    """Permission bits with suid, sgid and sticky."""
    return mode & 0o7777


def physical_memory_bytes() -> int:
    """What this machine has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(eq=False, slots=True)
class Node:
    number: int
    mode: int
    uid: int
    gid: int
    rdev: int = 0
    nlink: int = 1
    opened: int = 0
    data: bytearray = field(default_factory=bytearray)
    children: dict[bytes, Node] = field(default_factory=dict)
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


class Tree:
    """Nodes by name. `used` counts the bytes of contents, of which there are at most `size_max`."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.used = 0
        self._next = 1
        self._last_ns = 0
        self.root = self.new(st.S_IFDIR | 0o755, None)
        self.root.nlink = 2

    def now(self) -> int:
        self._last_ns = max(self._last_ns + 1, time.time_ns())  # two changes never look like one
        return self._last_ns

    def new(self, mode: int, owner: Owner | None) -> Node:
        uid, gid = owner if owner is not None else (os.geteuid(), os.getegid())
        node = Node(self._next, mode, uid, gid)
        self._next += 1
        node.atime_ns = node.mtime_ns = node.ctime_ns = self.now()
        return node

    def find(self, path: bytes) -> Node:
        node = self.root
        if path:
            for name in path.split(b"/"):
                node = self.child(node, name)
        return node

    @staticmethod
    def child(node: Node, name: bytes) -> Node:
        if not node.is_directory:
            raise BackendError(errno.ENOTDIR)
        if len(name) > NAME_MAX:
            raise BackendError(errno.ENAMETOOLONG)
        try:
            return node.children[name]
        except KeyError:
            raise BackendError(errno.ENOENT) from None

    def parent(self, path: bytes) -> tuple[Node, bytes]:
        directory, _, name = path.rpartition(b"/")
        parent = self.find(directory)
        if not parent.is_directory:
            raise BackendError(errno.ENOTDIR)
        if not name:
            raise BackendError(errno.EBUSY)
        if len(name) > NAME_MAX:
            raise BackendError(errno.ENAMETOOLONG)
        return parent, name

    def add(self, path: bytes, mode: int, owner: Owner | None) -> Node:
        parent, name = self.parent(path)
        if name in parent.children:
            raise BackendError(errno.EEXIST)
        if parent is not self.root and parent.nlink == 0:
            raise BackendError(errno.ENOENT)
        node = self.new(mode, owner)
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

    def drop(self, parent: Node, name: bytes) -> None:
        node = parent.children.pop(name)
        now = self.now()
        parent.mtime_ns = parent.ctime_ns = node.ctime_ns = now
        if node.is_directory:
            node.nlink = 0
            parent.nlink -= 1
        else:
            node.nlink -= 1
            self.release(node)

    def release(self, node: Node) -> None:
        """Give the space back of a file without a name and without an opener."""
        if node.nlink == 0 and node.opened == 0:
            self.used -= len(node.data)
            node.data.clear()

    def resize(self, node: Node, size: int) -> None:
        """Make a file `size` bytes long; ENOSPC over the bound."""
        grow = size - len(node.data)
        if grow > 0:
            if self.used + grow > self.size_max:
                raise BackendError(errno.ENOSPC)
            try:
                node.data.extend(bytes(grow))
            except MemoryError as exc:
                raise BackendError(errno.ENOSPC) from exc
        elif grow < 0:
            del node.data[size:]
        self.used += grow
        node.mtime_ns = node.ctime_ns = self.now()

    def change(self, node: Node, changes: Changes) -> Attributes:
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
        node.ctime_ns = self.now()
        return node.attributes()

    @staticmethod
    def check_replace(node: Node, other: Node) -> None:
        if node.is_directory and not other.is_directory:
            raise BackendError(errno.ENOTDIR)
        if other.is_directory and not node.is_directory:
            raise BackendError(errno.EISDIR)
        if other.children:
            raise BackendError(errno.ENOTEMPTY)
