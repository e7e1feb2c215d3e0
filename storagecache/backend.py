"""What a backend is: the async ABC, its wrappers, and how one is found by URL.

A path is bytes relative to the backend's root, components joined by ``/``; the root is ``b""``.
There is never a leading slash, an empty component, ``.`` or ``..``. Every operation raises
`BackendError` (with the errno its caller shall see) and nothing else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

import trio

from .errors import BackendError, ConfigError, UnsupportedError
from .types import Attributes, Changes, Entry, FilesystemStatistics, Owner

T = TypeVar("T")
Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Properties:
    """What a backend can do and how it likes to be asked."""

    read_max_bytes: int = 1 << 20  # longest single read
    workers: int = 16  # calls under way at once
    hard_links: bool = True
    symlinks: bool = True
    special_files: bool = True
    xattrs: bool = True
    ownership: bool = True
    write: Literal["writethrough", "writeback"] = "writethrough"
    name_max: int = 255


class File(ABC):
    """An open file of a backend. Usable after its name is gone. Closed exactly once."""

    opened: Attributes | None = None  # as of opening, where that cost nothing extra

    @abstractmethod
    async def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill `buffers` one after the other from `offset`; return the bytes read.

        Less than the buffers' length only at the end of the object. MUST NOT touch the buffers
        after it returned or raised, except when it was cancelled: the cache cancels only at
        shutdown and never reuses these buffers then.
        """

    @abstractmethod
    async def write(self, offset: int, data: bytes) -> Attributes:
        """Write all of `data` at `offset` (also beyond the end); return the attributes after."""

    @abstractmethod
    async def stat(self) -> Attributes: ...

    @abstractmethod
    async def setattr(self, changes: Changes) -> Attributes:
        """Apply all `changes` in one call; return the attributes after them."""

    @abstractmethod
    async def flush(self) -> None:
        """Report errors of earlier writes, as close(2) would; called at each close of the file."""

    @abstractmethod
    async def fsync(self, *, data_only: bool) -> None:
        """Return only when the contents are durable."""

    @abstractmethod
    async def aclose(self) -> None:
        """Free the file's resources. Called once; closes even when it raises."""


class DirectoryStream(ABC):
    """An open directory: its entries in batches, without ``.`` and ``..``."""

    @abstractmethod
    async def next(self, entries_max: int) -> list[Entry]:
        """At most `entries_max` further entries; empty at the end.

        Each entry present from start to end comes exactly once; one that vanishes meanwhile may
        come or not.
        """

    @abstractmethod
    async def aclose(self) -> None: ...


class Backend(ABC):
    """One store. Created by `open_backend`, started once, closed once."""

    properties: Properties

    async def start(self) -> None:  # noqa: B027  (optional)
        """Check that the store is there. Raises ConfigError that names what is missing."""

    async def aclose(self) -> None:  # noqa: B027  (optional)
        """Free everything."""

    @abstractmethod
    async def stat(self, path: bytes) -> Attributes:
        """lstat(2): a symbolic link is described, never followed."""

    @abstractmethod
    async def open_directory(self, path: bytes) -> DirectoryStream: ...

    @abstractmethod
    async def open(self, path: bytes, flags: int) -> File:
        """Open a regular file. `flags`: access mode, O_TRUNC, O_DIRECT, O_SYNC, O_DSYNC.

        O_APPEND and O_CREAT never arrive: the caller knows the size, and `create` creates.
        """

    @abstractmethod
    async def create(
        self, path: bytes, flags: int, mode: int, owner: Owner | None
    ) -> tuple[File, Attributes]:
        """Create a regular file that must not exist (EEXIST), owned by `owner`, and open it.

        With the parent's set-group-id bit the group is the parent's.
        """

    @abstractmethod
    async def setattr(self, path: bytes, changes: Changes) -> Attributes:
        """As `File.setattr`, by name; a symbolic link itself is changed."""

    @abstractmethod
    async def mkdir(self, path: bytes, mode: int, owner: Owner | None) -> Attributes: ...

    @abstractmethod
    async def unlink(self, path: bytes) -> None: ...

    @abstractmethod
    async def rmdir(self, path: bytes) -> None: ...

    @abstractmethod
    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        """`flags`: 0, RENAME_NOREPLACE (1) or RENAME_EXCHANGE (2); others raise EINVAL."""

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner | None) -> Attributes:
        raise UnsupportedError

    async def symlink(self, path: bytes, target: bytes, owner: Owner | None) -> Attributes:
        raise UnsupportedError

    async def readlink(self, path: bytes) -> bytes:
        raise UnsupportedError

    async def link(self, old: bytes, new: bytes) -> Attributes:
        """A further name for the object at `old`; returns the object's attributes."""
        raise UnsupportedError

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        """ENODATA where there is none."""
        raise UnsupportedError

    async def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        raise UnsupportedError

    async def listxattr(self, path: bytes) -> list[bytes]:
        return []

    async def removexattr(self, path: bytes, name: bytes) -> None:
        raise UnsupportedError

    @abstractmethod
    async def statfs(self) -> FilesystemStatistics: ...

    @abstractmethod
    async def fsync_directory(self, path: bytes) -> None:
        """Return only when the directory's entries are durable."""

    def statistics(self) -> dict[str, float]:
        """Counters and gauges of the backend and its layers, by name."""
        return {}

    def control(self, layer: str, **arguments: Any) -> dict[str, Any]:
        """Carry out a control command for the layer of that type (``fault``, ``aging`` ...).

        Returns the layer's state afterwards. LookupError where there is no such layer,
        ValueError (naming the argument) on bad arguments.
        """
        raise LookupError(layer)


class Limiter:
    """Runs blocking calls of one backend in threads, at most `workers` at once."""

    def __init__(self, workers: int) -> None:
        self._limiter = trio.CapacityLimiter(workers)

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """`call(*args)` in a thread; OSError becomes BackendError.

        A cancelled caller leaves at once; the thread goes on and keeps its place until it returns.
        """
        try:
            return await trio.to_thread.run_sync(
                call, *args, abandon_on_cancel=True, limiter=self._limiter
            )
        except OSError as exc:
            raise BackendError.from_os_error(exc) from exc

    @property
    def borrowed(self) -> int:
        """Threads under way."""
        return int(self._limiter.borrowed_tokens)


OperationKind = Literal["data", "metadata"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call on a backend, as its wrappers see it."""

    name: str  # the method: read, write, stat, next, ...
    path: bytes
    object_id: int = 0  # for read and write
    offset: int = 0
    size: int = 0  # bytes moved
    flags: int = 0  # of open

    @property
    def kind(self) -> OperationKind:
        return "data" if self.name in ("read", "write") else "metadata"


class BackendWrapper(Backend):
    """A backend around another one; every call goes through `around`.

    A layer overrides `around` (and `control`, `statistics` for its own `layer_type`) and nothing
    else. `around` may wait, fail, or call more than once; it MUST let `Cancelled` pass.
    """

    layer_type = ""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.properties = inner.properties

    async def around(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        return await call()

    async def start(self) -> None:
        await self.inner.start()

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def stat(self, path: bytes) -> Attributes:
        return await self.around(Operation("stat", path), lambda: self.inner.stat(path))

    async def open_directory(self, path: bytes) -> DirectoryStream:
        stream = await self.around(
            Operation("open_directory", path), lambda: self.inner.open_directory(path)
        )
        return _WrappedStream(self, path, stream)

    async def open(self, path: bytes, flags: int) -> File:
        operation = Operation("open", path, flags=flags)
        file = await self.around(operation, lambda: self.inner.open(path, flags))
        return _WrappedFile(self, path, file, None)

    async def create(
        self, path: bytes, flags: int, mode: int, owner: Owner | None
    ) -> tuple[File, Attributes]:
        file, attributes = await self.around(
            Operation("create", path), lambda: self.inner.create(path, flags, mode, owner)
        )
        return _WrappedFile(self, path, file, attributes.object_id), attributes

    async def setattr(self, path: bytes, changes: Changes) -> Attributes:
        return await self.around(
            Operation("setattr", path), lambda: self.inner.setattr(path, changes)
        )

    async def mkdir(self, path: bytes, mode: int, owner: Owner | None) -> Attributes:
        return await self.around(
            Operation("mkdir", path), lambda: self.inner.mkdir(path, mode, owner)
        )

    async def unlink(self, path: bytes) -> None:
        await self.around(Operation("unlink", path), lambda: self.inner.unlink(path))

    async def rmdir(self, path: bytes) -> None:
        await self.around(Operation("rmdir", path), lambda: self.inner.rmdir(path))

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        await self.around(Operation("rename", old), lambda: self.inner.rename(old, new, flags))

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner | None) -> Attributes:
        return await self.around(
            Operation("mknod", path), lambda: self.inner.mknod(path, mode, rdev, owner)
        )

    async def symlink(self, path: bytes, target: bytes, owner: Owner | None) -> Attributes:
        return await self.around(
            Operation("symlink", path), lambda: self.inner.symlink(path, target, owner)
        )

    async def readlink(self, path: bytes) -> bytes:
        return await self.around(Operation("readlink", path), lambda: self.inner.readlink(path))

    async def link(self, old: bytes, new: bytes) -> Attributes:
        return await self.around(Operation("link", new), lambda: self.inner.link(old, new))

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        return await self.around(
            Operation("getxattr", path), lambda: self.inner.getxattr(path, name)
        )

    async def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        await self.around(
            Operation("setxattr", path), lambda: self.inner.setxattr(path, name, value, flags)
        )

    async def listxattr(self, path: bytes) -> list[bytes]:
        return await self.around(Operation("listxattr", path), lambda: self.inner.listxattr(path))

    async def removexattr(self, path: bytes, name: bytes) -> None:
        await self.around(
            Operation("removexattr", path), lambda: self.inner.removexattr(path, name)
        )

    async def statfs(self) -> FilesystemStatistics:
        return await self.around(Operation("statfs", b""), self.inner.statfs)

    async def fsync_directory(self, path: bytes) -> None:
        await self.around(
            Operation("fsync_directory", path), lambda: self.inner.fsync_directory(path)
        )

    def statistics(self) -> dict[str, float]:
        return self.inner.statistics()

    def control(self, layer: str, **arguments: Any) -> dict[str, Any]:
        return self.inner.control(layer, **arguments)


class _WrappedFile(File):
    def __init__(
        self, wrapper: BackendWrapper, path: bytes, inner: File, object_id: int | None
    ) -> None:
        self._wrapper = wrapper
        self._path = path
        self._inner = inner
        self._object_id = object_id
        self.opened = inner.opened
        if object_id is None and inner.opened is not None:
            self._object_id = inner.opened.object_id

    async def _id(self) -> int:
        if self._object_id is None:  # a layer below never sees this stat: it is bookkeeping
            self._object_id = (await self._inner.stat()).object_id
        return self._object_id

    async def read_into(self, offset: int, buffers: Sequence[memoryview]) -> int:
        size = sum(len(buffer) for buffer in buffers)
        operation = Operation("read", self._path, await self._id(), offset, size)
        return await self._wrapper.around(operation, lambda: self._inner.read_into(offset, buffers))

    async def write(self, offset: int, data: bytes) -> Attributes:
        operation = Operation("write", self._path, await self._id(), offset, len(data))
        return await self._wrapper.around(operation, lambda: self._inner.write(offset, data))

    async def stat(self) -> Attributes:
        return await self._wrapper.around(Operation("stat", self._path), self._inner.stat)

    async def setattr(self, changes: Changes) -> Attributes:
        return await self._wrapper.around(
            Operation("setattr", self._path), lambda: self._inner.setattr(changes)
        )

    async def flush(self) -> None:
        await self._wrapper.around(Operation("flush", self._path), self._inner.flush)

    async def fsync(self, *, data_only: bool) -> None:
        await self._wrapper.around(
            Operation("fsync", self._path), lambda: self._inner.fsync(data_only=data_only)
        )

    async def aclose(self) -> None:
        await self._inner.aclose()  # never delayed, failed or repeated


class _WrappedStream(DirectoryStream):
    def __init__(self, wrapper: BackendWrapper, path: bytes, inner: DirectoryStream) -> None:
        self._wrapper = wrapper
        self._path = path
        self._inner = inner

    async def next(self, entries_max: int) -> list[Entry]:
        return await self._wrapper.around(
            Operation("next", self._path), lambda: self._inner.next(entries_max)
        )

    async def aclose(self) -> None:
        await self._inner.aclose()


def open_backend(url: str, layers: Sequence[Params] = (), *, key: str = "url") -> Backend:
    """The backend for `url` inside `layers`, the first of them outermost.

    Backends come from the entry points ``storagecache.backends`` (by URL scheme), layers from
    ``storagecache.layers`` (by ``type``). Each backend class has ``from_url(url: SplitResult)``
    and each layer class ``from_params(inner, params)``; both raise ValueError on bad values.

    Raises:
        ConfigError: unknown scheme or layer, or a bad value; its key starts with `key`.
    """
    split = urlsplit(url)
    if not split.scheme:
        raise ConfigError(key, f"no scheme in {url!r} (for a local folder write file:///path)")
    backend_type = _entry_point("storagecache.backends", split.scheme, key, "scheme")
    backend: Backend = _built(key, backend_type.from_url, split)
    base = key.removesuffix("url")
    for index in range(len(layers) - 1, -1, -1):
        where = f"{base}layers[{index}]"
        params = dict(layers[index])
        name = params.pop("type", None)
        if not isinstance(name, str):
            raise ConfigError(f"{where}.type", "missing")
        layer_type = _entry_point("storagecache.layers", name, f"{where}.type", "layer")
        backend = _built(where, layer_type.from_params, backend, params)
    return backend


def _entry_point(group: str, name: str, key: str, what: str) -> Any:
    found = entry_points(group=group)
    for point in found:
        if point.name == name:
            return point.load()
    known = ", ".join(sorted({point.name for point in found}))
    raise ConfigError(key, f"unknown {what} {name!r} (known: {known})")


def _built(key: str, build: Callable[..., Backend], *args: Any) -> Backend:
    try:
        return build(*args)
    except ValueError as exc:
        raise ConfigError(key, str(exc)) from exc


__all__ = [
    "Backend",
    "BackendWrapper",
    "DirectoryStream",
    "File",
    "Limiter",
    "Operation",
    "OperationKind",
    "Properties",
    "SplitResult",
    "open_backend",
]
