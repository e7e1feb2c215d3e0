"""A store: a backend at its place in the tree, with what the filesystem keeps for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import trio

from ..cache import Device
from ..metrics import MeteredBackend
from ..types import FilesystemStatistics

if TYPE_CHECKING:
    from .inodes import Inode

RETAINED_OBJECTS_MAX: Final = 65_536  # objects whose pages outlive the kernel's interest, per store
_ID_BITS: Final = 48

Fingerprint = tuple[int, int, int, bytes]  # mtime_ns, ctime_ns, size, version


@dataclass(slots=True)
class Retained:
    """Pages of an object that nobody looks at now; good as long as the fingerprint is the same."""

    slot: int
    fingerprint: Fingerprint | None


@dataclass(slots=True)
class Timeouts:
    """Seconds."""

    metadata: float = 10.0
    data: float = 30.0
    attribute: float = 1.0
    entry: float = 1.0
    negative: float = 0.0


class PathLock:
    """Calls by name run together; renaming a directory, which changes other names, runs alone."""

    __slots__ = ("_idle", "_renaming", "_users")

    def __init__(self) -> None:
        self._users = 0
        self._renaming: trio.Event | None = None
        self._idle: trio.Event | None = None

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        while self._renaming is not None:
            await self._renaming.wait()
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._users == 0 and self._idle is not None:
                self._idle.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        while self._renaming is not None:
            await self._renaming.wait()
        self._renaming = trio.Event()
        try:
            if self._users:
                self._idle = trio.Event()
                await self._idle.wait()
            yield
        finally:
            self._idle = None
            self._renaming.set()
            self._renaming = None


@dataclass(eq=False, slots=True)
class Store:
    """One backend of the mount."""

    name: str
    at: tuple[bytes, ...]  # components of the graft's path
    backend: MeteredBackend
    device: Device
    timeouts: Timeouts
    salt: int = 0  # 15 bits, distinct for each store
    root: Inode | None = None
    objects: dict[int, Inode] = field(default_factory=dict)  # by object_id
    retained: OrderedDict[int, Retained] = field(default_factory=OrderedDict)
    refreshing: bool = False
    statfs: FilesystemStatistics | None = None  # as last told
    paths: PathLock = field(default_factory=PathLock)

    def inode_number(self, object_id: int) -> int:
        """The number of an object in the mounted tree: stable across mounts."""
        if object_id >> _ID_BITS:
            digest = blake2b(object_id.to_bytes(8, "little"), digest_size=6).digest()
            object_id = int.from_bytes(digest, "little")
        return (self.salt << _ID_BITS) | object_id


def salts(names: list[str]) -> list[int]:
    """A number from 1 to 32767 for each name: by the name alone, except where two collide."""
    taken: set[int] = set()
    result = []
    for name in names:
        salt = int.from_bytes(blake2b(name.encode(), digest_size=2).digest(), "little") & 0x7FFF
        while salt == 0 or salt in taken:
            salt = (salt + 1) & 0x7FFF
        taken.add(salt)
        result.append(salt)
    return result
