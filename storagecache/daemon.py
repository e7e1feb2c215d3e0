"""Into the background and back: a mount as a daemon, and taking a mount down again."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Final, NoReturn

import trio

from .config import Config
from .control import ControlClient, canonical
from .errors import ConfigError, ControlError, StorageCacheError
from .mount import Mounted, mount_device, run

_EXIT_BAD_INPUT: Final = 2


def run_foreground(config: Config, mountpoint: str, ready: Callable[[Mounted], None]) -> None:
    """Mount and serve in this process; returns when unmounted.

    Raises the one StorageCacheError that ended the mount, without the groups trio wraps it in.
    """
    os.umask(0)
    try:
        trio.run(run, config, mountpoint, ready, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        raise _single(group) from group


def _single(group: BaseExceptionGroup[BaseException]) -> BaseException:
    matching, rest = group.split(StorageCacheError)
    if rest is not None or matching is None:
        return group
    found: BaseException = matching
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def run_daemon(config: Config, mountpoint: str, log_file: str | None) -> None:
    """Mount in a background process; returns once it serves requests.

    Raises ConfigError with the daemon's line where it did not come up.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _daemon(config, mountpoint, log_file, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        line = pipe.read()
    os.waitpid(child, 0)
    if line != b"ready\n":
        key, _, problem = line.decode().strip().partition("\t")
        raise ConfigError(key or mountpoint, problem or "the daemon ended before it was mounted")


def _daemon(config: Config, mountpoint: str, log_file: str | None, writer: int) -> NoReturn:
    status = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        target = os.open(log_file or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, number in ((null, 0), (target, 1), (target, 2)):
            os.dup2(source, number)

        def ready(mounted: Mounted) -> None:
            os.write(writer, b"ready\n")
            os.close(writer)

        try:
            run_foreground(config, mountpoint, ready)
            status = 0
        except ConfigError as exc:
            problem = str(exc).removeprefix(f"{exc.key}: ")
            os.write(writer, f"{exc.key}\t{problem}\n".encode())
            status = _EXIT_BAD_INPUT
    except BaseException:
        logging.getLogger(__name__).exception("the daemon ended")
    finally:
        logging.shutdown()
        os._exit(status)


def unmount(mountpoint: str, *, timeout_s: float = 60.0) -> None:
    """Drain and unmount; returns when the daemon has ended.

    A mount whose daemon died (kill -9) is detached. Raises ControlError where something is still
    dirty, the mount is busy, or nothing is mounted.
    """
    mountpoint = canonical(mountpoint)
    if mount_device(mountpoint) is None:
        raise ControlError(f"{mountpoint}: nothing is mounted here")
    client: ControlClient | None = None
    with contextlib.suppress(ControlError):
        client = ControlClient(mountpoint, timeout_s=timeout_s)
    if client is None:
        _fusermount(mountpoint, "-uz")
        return
    with client:
        left = client.call("drain")["dirty_bytes"]
        if left:
            raise ControlError(f"{mountpoint}: {left} bytes are still dirty")
        pid = client.call("status")["pid"]
        process = os.pidfd_open(pid)
        try:
            _fusermount(mountpoint, "-u")
            poll = select.poll()
            poll.register(process, select.POLLIN)
            ended = poll.poll(timeout_s * 1000)
        finally:
            os.close(process)
        if not ended:
            raise ControlError(f"{mountpoint}: unmounted, but the daemon has not ended")


def _fusermount(mountpoint: str, flag: str) -> None:
    if os.geteuid() == 0:
        command = ["umount", *(["-l"] if "z" in flag else []), mountpoint]
    else:
        tool = shutil.which("fusermount3") or "fusermount3"
        command = [tool, flag, mountpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise ControlError(lines[0] if lines else f"{command[0]} failed on {mountpoint}")
