"""A mount from start to end: the one nursery that owns every task, and what the commands do."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from . import __version__, fuse
from ._core import Cache
from .backend import Backend, open_backend
from .cache import Device, PageCache
from .config import Config, check_mount
from .control import ControlServer, canonical, socket_path
from .errors import ConfigError, ControlError, StorageCacheError
from .metrics import Collector, FrontStatistics, MeteredBackend, MetricsServer
from .vfs import Filesystem, Store
from .vfs.stores import Timeouts, salts

log = logging.getLogger(__name__)
_MAX_BACKGROUND: Final = 4096
_READ_AHEAD_KB: Final = 1024
_TIMELINE_EPOCHS: Final = 4096
_FUSECTL: Final = Path("/sys/fs/fuse/connections")


@dataclass(slots=True)
class Mounted:
    """What a running mount consists of; `ready` is called with it once requests are served."""

    config: Config
    mountpoint: str
    core: Cache
    filesystem: Filesystem
    backends: list[MeteredBackend]
    front: fuse.Front
    statistics: FrontStatistics
    metrics_port: int | None = None
    started: float = field(default_factory=time.monotonic)
    timeline: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_TIMELINE_EPOCHS))
    notes: list[str] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        """Everything `storagecache status` shows; plain values."""
        core = self.core.statistics()
        backends = {}
        for store, backend, part in zip(
            self.filesystem.stores, self.backends, core["partitions"], strict=True
        ):
            backends[store.name] = {
                **part,
                "at": "/" + os.fsdecode(b"/".join(store.at)),
                "response_s": part["response_ns"] / 1e9,
                "busy_s": part["busy_ns"] / 1e9,
                "bytes_read": backend.bytes["read"],
                "bytes_written": backend.bytes["write"],
                "under_way": backend.under_way,
                "errors": {f"{op}:{code}": n for (op, code), n in backend.errors.items()},
                "layers": backend.statistics(),
            }
        cache = {key: value for key, value in core.items() if key != "partitions"}
        return {
            "version": __version__,
            "pid": os.getpid(),
            "mountpoint": self.mountpoint,
            "uptime_s": time.monotonic() - self.started,
            "cache": cache,
            "backends": backends,
            "filesystem": self.filesystem.statistics(),
            "requests": {op: h.count for op, h in self.statistics.requests.items()},
            "failures": dict(self.statistics.failures),
            "metrics_port": self.metrics_port,
            "notes": list(self.notes),
        }

    def note_epoch(self) -> None:
        """Keep the partition sizes at the end of an epoch."""
        core = self.core.statistics()
        self.timeline.append(
            {
                "time_s": time.monotonic() - self.started,
                "epoch": core["epochs"],
                "pages": [part["pages"] for part in core["partitions"]],
                "target_pages": [part["target_pages"] for part in core["partitions"]],
                "relative_wait": [part["relative_wait"] for part in core["partitions"]],
                "state": [part["state"] for part in core["partitions"]],
            }
        )


class Commands:
    """What the control socket can do to a mount."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted

    def handlers(self) -> dict[str, Callable[..., Any]]:
        return {
            "status": self.status,
            "timeline": self.timeline,
            "layer": self.layer,
            "repartition": self.repartition,
            "policy": self.policy,
            "resize": self.resize,
            "drain": self.drain,
        }

    async def status(self) -> dict[str, Any]:
        return self._mounted.status()

    async def timeline(self, since: int = 0) -> list[dict[str, Any]]:
        """The epochs after number `since`."""
        return [row for row in self._mounted.timeline if row["epoch"] > since]

    async def layer(self, backend: str, layer: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """A command for one layer of one backend: `fault`, `aging`, `throttle`."""
        for store in self._mounted.filesystem.stores:
            if store.name == backend:
                try:
                    return store.backend.control(layer, **arguments)
                except LookupError:
                    raise ControlError(f"backend {backend!r} has no {layer} layer") from None
        known = ", ".join(store.name for store in self._mounted.filesystem.stores)
        raise ControlError(f"no backend {backend!r} (there are: {known})")

    async def repartition(
        self,
        mode: str | None = None,
        preset: str = "default",
        targets: dict[str, int] | None = None,
        now: bool = False,
    ) -> dict[str, Any]:
        """Change the repartitioner, set targets by hand, or end the epoch."""
        core = self._mounted.core
        if mode is not None:
            core.set_repartition(mode, preset=preset)
        if targets is not None:
            names = [store.name for store in self._mounted.filesystem.stores]
            if sorted(targets) != sorted(names):
                raise ControlError(f"targets must name every backend: {', '.join(names)}")
            core.set_targets([targets[name] for name in names])
        if now and core.end_epoch(time.monotonic_ns()):
            self._mounted.note_epoch()
        return self._mounted.status()["backends"]  # type: ignore[no-any-return]

    async def policy(self, name: str) -> str:
        self._mounted.core.set_policy(name)
        return self._mounted.core.statistics()["policy"]

    async def resize(self, memory_bytes: int) -> int:
        self._mounted.core.resize(memory_bytes)
        return self._mounted.core.statistics()["capacity_bytes"]

    async def drain(self) -> dict[str, int]:
        """Returns when nothing is dirty; every write so far is in its backend."""
        return {"dirty_bytes": self._mounted.core.statistics()["dirty_bytes"]}


async def run(config: Config, mountpoint: str, ready: Callable[[Mounted], None]) -> None:
    """Mount, serve until unmounted or told to end (SIGTERM, SIGINT), and clean up.

    Raises ConfigError, with nothing mounted, where the mount cannot be made.
    """
    check_mount(config, mountpoint)
    mountpoint = canonical(mountpoint)
    async with contextlib.AsyncExitStack() as stack:
        backends = [await _started(stack, config, index) for index in range(len(config.backends))]
        try:
            core = Cache(**config.cache_arguments())
        except ValueError as exc:
            raise ConfigError("cache", str(exc)) from exc
        async with trio.open_nursery() as nursery:
            mounted = await _build(config, mountpoint, core, backends, nursery)
            await _serve(mounted, nursery, ready)
            nursery.cancel_scope.cancel()


def check_stores(config: Config) -> None:
    """Start every store of a configuration and close it again. Raises ConfigError."""

    async def start_all() -> None:
        async with contextlib.AsyncExitStack() as stack:
            for index in range(len(config.backends)):
                await _started(stack, config, index)

    trio.run(start_all)


async def _started(stack: contextlib.AsyncExitStack, config: Config, index: int) -> MeteredBackend:
    spec = config.backends[index]
    key = f"backend[{index}]"
    inner: Backend = open_backend(spec.url, spec.layers, key=f"{key}.url")
    backend = MeteredBackend(inner)
    if backend.properties.write == "writeback":
        raise ConfigError(f"{key}.url", "this backend needs the write-back spool, not there yet")
    stack.push_async_callback(backend.aclose)
    try:
        await backend.start()
    except StorageCacheError as exc:
        raise ConfigError(f"{key}.url ({spec.name})", str(exc)) from exc
    return backend


async def _build(
    config: Config,
    mountpoint: str,
    core: Cache,
    backends: list[MeteredBackend],
    nursery: trio.Nursery,
) -> Mounted:
    statistics = FrontStatistics()
    cache = PageCache(core, nursery)
    stores = []
    for index, (spec, backend, salt) in enumerate(
        zip(config.backends, backends, salts([one.name for one in config.backends]), strict=True)
    ):
        device = Device(
            index, backend.properties.read_max_bytes, whole_pages=config.cache.fill == "page"
        )
        timeouts = Timeouts(
            spec.timeout_metadata_s,
            spec.timeout_data_s,
            spec.attr_ttl_s,
            spec.entry_ttl_s,
            spec.negative_ttl_s,
        )
        at = tuple(os.fsencode(part) for part in spec.at.strip("/").split("/"))
        stores.append(Store(spec.name, at, backend, device, timeouts, salt))
    filesystem = Filesystem(
        cache, stores, nursery, read_only=config.mount.read_only, xattrs=config.mount.xattrs
    )
    filesystem.readahead_bytes = config.cache.readahead_bytes
    try:
        await filesystem.start()
    except StorageCacheError as exc:
        raise ConfigError("backend", str(exc)) from exc
    front = fuse.Front(filesystem, statistics, kernel_cache=config.mount.kernel_cache == "auto")
    mounted = Mounted(config, mountpoint, core, filesystem, backends, front, statistics)
    cache.on_epoch = mounted.note_epoch
    return mounted


async def _serve(mounted: Mounted, nursery: trio.Nursery, ready: Callable[[Mounted], None]) -> None:
    config = mounted.config
    ended = trio.Event()
    names = [store.name for store in mounted.filesystem.stores]
    async with contextlib.AsyncExitStack() as stack:
        if config.metrics.listen:
            host, _, port = config.metrics.listen.rpartition(":")
            collector = Collector(
                names, mounted.backends, mounted.core.statistics, mounted.statistics
            )
            try:
                server = MetricsServer(collector, host.strip("[]"), int(port))
            except OSError as exc:
                raise ConfigError("metrics.listen", str(exc)) from exc
            stack.callback(server.close)
            mounted.metrics_port = server.port
        await nursery.start(_watch_signals, ended)
        control = ControlServer(socket_path(mounted.mountpoint), Commands(mounted).handlers())
        await nursery.start(control.run)
        try:
            fuse.start(mounted.front, mounted.mountpoint, _options(mounted))
        except RuntimeError as exc:
            raise ConfigError(mounted.mountpoint, f"cannot mount: {exc}") from exc
        try:
            nursery.start_soon(_end_on, ended)
            nursery.start_soon(_announce, mounted, ready)
            await fuse.serve()
        finally:
            with trio.CancelScope(shield=True):
                await _close_handles(mounted)
            fuse.close(unmount=True)


async def _announce(mounted: Mounted, ready: Callable[[Mounted], None]) -> None:
    """Once requests are answered: raise the kernel's limits, then say that the mount is ready.

    Before the first answer the kernel would set its limits back when it negotiates.
    """
    await trio.to_thread.run_sync(os.statvfs, mounted.mountpoint, abandon_on_cancel=True)
    mounted.notes.extend(await trio.to_thread.run_sync(_tune, mounted.mountpoint))
    ready(mounted)


async def _end_on(ended: trio.Event) -> None:
    await ended.wait()
    fuse.stop()


async def _close_handles(mounted: Mounted) -> None:
    """Close what the kernel has not released: the mount is going away."""
    for number in list(mounted.filesystem.handles):
        with trio.move_on_after(1):
            try:
                await mounted.filesystem.release(number)
                await mounted.filesystem.releasedir(number)
            except StorageCacheError as exc:
                log.warning("closing a file at unmount: %s", exc)


async def _watch_signals(
    ended: trio.Event, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            log.info("signal %s: unmounting", signal.Signals(number).name)
            ended.set()


def _options(mounted: Mounted) -> set[str]:
    mount = mounted.config.mount
    options = {f"fsname={mount.fsname}", "subtype=storagecache"}
    if mount.allow_other:
        options |= {"allow_other", "default_permissions"}
    if mount.read_only:
        options.add("ro")
    return options


def mount_device(mountpoint: str) -> tuple[int, int] | None:
    """Device numbers of what is mounted there, without asking it."""
    wanted = os.fsencode(mountpoint)
    found = None
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields = line.split(b" ")
        if _unescape(fields[4]) == wanted:
            major, _, minor = fields[2].partition(b":")
            found = int(major), int(minor)
    return found


def _unescape(field: bytes) -> bytes:
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        field = field.replace(code, char)
    return field


def _tune(mountpoint: str) -> list[str]:
    """Raise the kernel's limits for this mount; what could not be raised comes back as notes."""
    device = mount_device(mountpoint)
    if device is None:
        return ["the mount was not found in mountinfo; the kernel's limits are its defaults"]
    notes = []
    connection = _FUSECTL / str(device[1])
    if not connection.exists() and os.geteuid() == 0:
        subprocess.run(
            ["mount", "-t", "fusectl", "none", str(_FUSECTL)], check=False, capture_output=True
        )
    for path, value in (
        (connection / "max_background", _MAX_BACKGROUND),
        (connection / "congestion_threshold", _MAX_BACKGROUND),
        (Path(f"/sys/class/bdi/{device[0]}:{device[1]}/read_ahead_kb"), _READ_AHEAD_KB),
    ):
        try:
            path.write_text(str(value))
        except OSError as exc:
            notes.append(f"{path}: {exc.strerror}; left at its default")
    return notes
