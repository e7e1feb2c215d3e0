"""Inodes: the objects of the mounted tree that the kernel or a handle knows.

An inode holds its names (parent and name, one for each hard link seen), from which the backend's
path is composed when it is needed; a rename of a directory therefore moves everything below it.
"""

from __future__ import annotations

import errno
import stat as st
from time import monotonic, time_ns
from typing import Final, Protocol

from ..errors import BackendError
from ..types import Attributes
from .stores import RETAINED_OBJECTS_MAX, Fingerprint, Retained, Store

ROOT: Final = 1
_UNSTABLE_BASE: Final = 1 << 63  # numbers for objects whose own number is still in use
_NO_CHILDREN: Final[dict[bytes, Inode]] = {}


class Inode:
    """One node. `store` is None for the synthetic directories above the grafts.

    `names` holds (parent, name) pairs; empty once the last name known is gone.
    """

    __slots__ = (
        "attributes",
        "capability",
        "changed_at",
        "children",
        "expires",
        "files",
        "fingerprint",
        "lookups",
        "name",
        "number",
        "other_names",
        "parent",
        "slot",
        "store",
        "writing",
    )

    def __init__(self, number: int, store: Store | None, attributes: Attributes) -> None:
        self.number = number
        self.store = store
        self.attributes = attributes
        self.expires = 0.0
        self.lookups = 0
        self.parent: Inode | None = None
        self.name = b""
        self.other_names: list[tuple[Inode, bytes]] | None = None
        self.children: dict[bytes, Inode] = _NO_CHILDREN
        self.files: list[object] | None = None  # open FileHandles
        self.slot = -1
        self.changed_at = 0  # value of Inodes.clock at the last change made through the mount
        self.writing = 0  # writes under way
        self.fingerprint: Fingerprint | None = None
        self.capability: bytes | None = None  # security.capability; b"" = known to have none

    @property
    def is_directory(self) -> bool:
        return st.S_ISDIR(self.attributes.mode)

    @property
    def is_graft(self) -> bool:
        return self.store is not None and self.store.root is self

    def add_name(self, parent: Inode, name: bytes) -> None:
        if self.parent is None:
            self.parent, self.name = parent, name
        elif not (self.parent is parent and self.name == name):
            others = self.other_names
            if others is None:
                self.other_names = [(parent, name)]
            elif (parent, name) not in others:
                others.append((parent, name))
        if parent.children is _NO_CHILDREN:
            parent.children = {}
        parent.children[name] = self

    def remove_name(self, parent: Inode, name: bytes) -> None:
        if parent.children.get(name) is self:
            del parent.children[name]
        if self.parent is parent and self.name == name:
            if self.other_names:
                self.parent, self.name = self.other_names.pop()
            else:
                self.parent, self.name = None, b""
        elif self.other_names and (parent, name) in self.other_names:
            self.other_names.remove((parent, name))


def fingerprint(attributes: Attributes) -> Fingerprint:
    """What must be the same for cached pages of an object to be good."""
    return (attributes.mtime_ns, attributes.ctime_ns, attributes.size, attributes.version)


def path_of(inode: Inode) -> bytes:
    """The path of `inode` beneath its backend's root; ENOENT once it has no name."""
    store = inode.store
    parts = []
    node = inode
    while store is not None and node is not store.root:
        if node.parent is None:
            raise BackendError(errno.ENOENT)
        parts.append(node.name)
        node = node.parent
    parts.reverse()
    return b"/".join(parts)


def child_path(parent: Inode, name: bytes) -> bytes:
    base = path_of(parent)
    return base + b"/" + name if base else name


class Inodes:
    """The table of inodes, by number and by object; lookup counts decide who stays."""

    def __init__(self, close_object: _CloseObject) -> None:
        self._close_object = close_object
        self.by_number: dict[int, Inode] = {}
        self.clock = 0  # grows with every change made through the mount
        self._unstable = _UNSTABLE_BASE
        now = time_ns()
        self.root = self._synthetic(ROOT, now)
        self.root.lookups = 1
        self._synthetic_next = 2

    def __len__(self) -> int:
        return len(self.by_number)

    def _synthetic(self, number: int, now_ns: int) -> Inode:
        attributes = Attributes(
            number, st.S_IFDIR | 0o755, 2, 0, 0, 0, 0, 0, now_ns, now_ns, now_ns
        )
        inode = Inode(number, None, attributes)
        inode.expires = float("inf")
        self.by_number[number] = inode
        return inode

    def graft(self, store: Store, attributes: Attributes) -> Inode:
        """Put the root of `store` at its place; the directories above it are made as needed."""
        node = self.root
        for name in store.at[:-1]:
            below = node.children.get(name)
            if below is None:
                below = self._synthetic(self._synthetic_next, node.attributes.mtime_ns)
                self._synthetic_next += 1
                below.lookups = 1  # never forgotten
                below.add_name(node, name)
                node.attributes = node.attributes._replace(nlink=node.attributes.nlink + 1)
            node = below
        inode = Inode(store.inode_number(attributes.object_id), store, attributes)
        inode.lookups = 1  # never forgotten
        inode.add_name(node, store.at[-1])
        node.attributes = node.attributes._replace(nlink=node.attributes.nlink + 1)
        store.root = inode
        store.objects[attributes.object_id] = inode
        self.by_number[inode.number] = inode
        return inode

    def get(self, number: int) -> Inode:
        try:
            return self.by_number[number]
        except KeyError:
            raise BackendError(errno.ESTALE, f"no inode {number}") from None

    def adopt(
        self, parent: Inode, name: bytes, attributes: Attributes, since: int | None = None
    ) -> Inode:
        """The inode of the object that `parent` has under `name` according to its backend.

        `since`: the `clock` when the backend was asked.
        """
        store = parent.store
        assert store is not None
        inode = store.objects.get(attributes.object_id)
        if inode is not None and st.S_IFMT(inode.attributes.mode) != st.S_IFMT(attributes.mode):
            self._disown(inode)  # the number was given to another object
            inode = None
        before = parent.children.get(name)
        if before is not None and before is not inode:
            before.remove_name(parent, name)
        if inode is None:
            number = store.inode_number(attributes.object_id)
            if number in self.by_number:
                self._unstable += 1
                number = self._unstable
            inode = Inode(number, store, attributes)
            self.by_number[number] = inode
            store.objects[attributes.object_id] = inode
            kept = store.retained.pop(attributes.object_id, None)
            if kept is not None:
                inode.slot = kept.slot
                inode.fingerprint = kept.fingerprint
        if inode.parent is not parent or inode.name != name:
            if inode.is_directory and inode.parent is not None:
                inode.remove_name(inode.parent, inode.name)  # moved behind our back
            inode.add_name(parent, name)
        elif before is None:
            inode.add_name(parent, name)
        self.learn(inode, attributes, since)
        return inode

    @staticmethod
    def learn(inode: Inode, attributes: Attributes, since: int | None = None) -> None:
        """These are the attributes; not any more if the inode was changed after `since`."""
        if since is not None and inode.changed_at > since:
            return
        inode.attributes = attributes
        store = inode.store
        if store is not None:
            inode.expires = monotonic() + store.timeouts.attribute

    def changed(self, inode: Inode, attributes: Attributes) -> None:
        """A change through the mount left the inode with these attributes."""
        self.clock += 1
        inode.changed_at = self.clock
        inode.fingerprint = fingerprint(attributes)
        self.learn(inode, attributes)

    def forget(self, inode: Inode, count: int) -> None:
        """The kernel gives up `count` lookups."""
        inode.lookups = max(0, inode.lookups - count)
        self.drop_if_unused(inode)

    def drop_if_unused(self, inode: Inode) -> None:
        if inode.lookups or inode.files or inode.store is None or inode.is_graft:
            return
        if self.by_number.get(inode.number) is inode:
            del self.by_number[inode.number]
        nameless = inode.parent is None
        while inode.parent is not None:
            inode.remove_name(inode.parent, inode.name)
        self._disown(inode, keep_pages=not nameless)

    def _disown(self, inode: Inode, *, keep_pages: bool = False) -> None:
        store = inode.store
        assert store is not None
        object_id = inode.attributes.object_id
        if store.objects.get(object_id) is inode:
            del store.objects[object_id]
        if inode.slot < 0:
            return
        if keep_pages:
            store.retained[object_id] = Retained(inode.slot, inode.fingerprint)
            if len(store.retained) > RETAINED_OBJECTS_MAX:
                self._close_object(store.retained.popitem(last=False)[1].slot)
        elif inode.files:
            return  # closed with its last handle
        else:
            self._close_object(inode.slot)
        inode.slot = -1

    def unlinked(self, inode: Inode) -> None:
        """The last name of the object is gone: its number may be given to another one."""
        store = inode.store
        assert store is not None
        object_id = inode.attributes.object_id
        if store.objects.get(object_id) is inode:
            del store.objects[object_id]


class _CloseObject(Protocol):
    """Called with the slot of an object whose pages nobody wants any more."""

    def __call__(self, slot: int, /) -> None: ...
