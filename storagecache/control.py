"""The control plane: a UNIX socket (mode 0600) per mount, and the client behind the commands.

One JSON object a line: ``{"command": NAME, ...arguments}`` is answered by ``{"ok": true,
"result": ...}`` or ``{"ok": false, "error": LINE}``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import socket
import stat as st
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final

import trio

from .errors import ControlError, StorageCacheError

log = logging.getLogger(__name__)
Handler = Callable[..., Awaitable[Any]]
_LINE_MAX_BYTES: Final = 1 << 20
_CLIENTS_MAX: Final = 64


def runtime_directory() -> Path:
    """Where sockets live: private to the user who mounts."""
    if os.geteuid() == 0:
        base = Path("/run/storagecache")
    elif "XDG_RUNTIME_DIR" in os.environ:
        base = Path(os.environ["XDG_RUNTIME_DIR"]) / "storagecache"
    else:
        base = Path(f"/tmp/storagecache-{os.geteuid()}")
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = base.lstat()
    if not st.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise ControlError(f"{base}: must be a directory of mode 0700 that belongs to you")
    return base


def canonical(mountpoint: str) -> str:
    """The absolute path of a mount point, found without asking the filesystem mounted there."""
    parent, name = os.path.split(os.path.abspath(mountpoint))
    return os.path.join(os.path.realpath(parent), name)


def socket_path(mountpoint: str) -> Path:
    digest = hashlib.blake2b(os.fsencode(canonical(mountpoint)), digest_size=12).hexdigest()
    return runtime_directory() / f"{digest}.sock"


class ControlServer:
    """Answers commands of one mount. `handlers` maps a command to its coroutine function."""

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        self._path = path
        self._handlers = handlers
        self._slots = trio.CapacityLimiter(_CLIENTS_MAX)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._path.unlink(missing_ok=True)
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            mask = os.umask(0o177)
            try:
                await listener.bind(str(self._path))
            finally:
                os.umask(mask)
            try:
                listener.listen(_CLIENTS_MAX)
                async with trio.open_nursery() as nursery:
                    task_status.started()
                    while True:
                        client, _ = await listener.accept()
                        nursery.start_soon(self._serve, trio.SocketStream(client))
            finally:
                self._path.unlink(missing_ok=True)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with self._slots, stream:
            pending = b""
            try:
                async for chunk in stream:
                    pending += chunk
                    if len(pending) > _LINE_MAX_BYTES:
                        return
                    *lines, pending = pending.split(b"\n")
                    for line in lines:
                        answer = await self._answer(line)
                        await stream.send_all(json.dumps(answer).encode() + b"\n")
            except trio.BrokenResourceError:
                return  # the client went away

    async def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            command = request.pop("command")
            handler = self._handlers.get(command)
            if handler is None:
                raise ControlError(f"unknown command {command!r}")
            return {"ok": True, "result": await handler(**request)}
        except StorageCacheError as exc:
            return {"ok": False, "error": str(exc)}
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            return {"ok": False, "error": f"{type(exc).__name__}: {exc}"}
        except Exception as exc:
            log.exception("control command failed unexpectedly")
            return {"ok": False, "error": f"internal error: {exc}"}


class ControlClient:
    """A blocking connection to a mount's control socket."""

    def __init__(self, mountpoint: str, *, timeout_s: float = 60.0) -> None:
        self.mountpoint = mountpoint
        path = socket_path(mountpoint)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(str(path))
        except OSError as exc:
            self._socket.close()
            if exc.errno in (errno.ENOENT, errno.ECONNREFUSED):
                raise ControlError(f"{mountpoint}: no storagecache is mounted here") from exc
            raise ControlError(f"{mountpoint}: {exc.strerror}") from exc
        self._file = self._socket.makefile("rb")

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()
        self._socket.close()

    def call(self, command: str, **arguments: Any) -> Any:
        """Raises ControlError with the server's line."""
        try:
            self._socket.sendall(json.dumps({"command": command, **arguments}).encode() + b"\n")
            line = self._file.readline()
        except OSError as exc:
            raise ControlError(f"{self.mountpoint}: {exc}") from exc
        if not line:
            raise ControlError(f"{self.mountpoint}: the mount ended")
        answer = json.loads(line)
        if not answer["ok"]:
            raise ControlError(answer["error"])
        return answer["result"]


def call(mountpoint: str, command: str, **arguments: Any) -> Any:
    """One command to the mount at `mountpoint`."""
    with ControlClient(mountpoint) as client:
        return client.call(command, **arguments)
