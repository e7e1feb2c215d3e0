"""Path resolution beneath a root descriptor: nothing outside of it is ever reached.

`openat2` with RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS; where the kernel
refuses the call, a walk by O_NOFOLLOW, one component at a time. Paths longer than PATH_MAX are
resolved in steps.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

NAME_MAX: Final = 255
_STEP_BYTES: Final = 4000  # below PATH_MAX
_SYS_OPENAT2: Final = 437
_TRIES: Final = 100
_RESOLVE: Final = 0x02 | 0x04 | 0x08  # NO_MAGICLINKS | NO_SYMLINKS | BENEATH
_RENAME: Final = 316 if os.uname().machine == "x86_64" else 276

_libc: Final = ctypes.CDLL(None, use_errno=True)
_has_openat2 = True


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def _raise(path: bytes) -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), os.fsdecode(path))


def _check(path: bytes) -> None:
    """The promise on paths, enforced: no ``..`` leads out, and no NUL cuts a name short in C."""
    padded = b"/" + path + b"/"
    if b"\0" in path or b"//" in padded or b"/./" in padded or b"/../" in padded:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fsdecode(path))


def _openat2(directory: int, path: bytes, flags: int) -> int:
    global _has_openat2  # noqa: PLW0603  (what this kernel can do, found out once)
    if _has_openat2:
        how = _OpenHow(flags | os.O_CLOEXEC, 0, _RESOLVE)
        found = -1
        for _ in range(_TRIES):  # EINTR: ctypes, unlike os, does not repeat
            found = int(
                _libc.syscall(
                    ctypes.c_long(_SYS_OPENAT2),
                    ctypes.c_int(directory),
                    ctypes.c_char_p(path),
                    ctypes.byref(how),
                    ctypes.c_size_t(ctypes.sizeof(how)),
                )
            )
            if found >= 0 or ctypes.get_errno() not in (errno.EINTR, errno.EAGAIN):
                break
        if found >= 0:
            return found
        if ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
            _raise(path)
        _has_openat2 = ctypes.get_errno() == errno.EPERM
    return _walk(directory, path, flags)


def _walk(directory: int, path: bytes, flags: int) -> int:
    parts = path.split(b"/")
    current = os.dup(directory)
    try:
        for part in parts[:-1]:
            step = os.open(
                part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current
            )
            os.close(current)
            current = step
        return os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
    finally:
        os.close(current)


def open_beneath(root: int, path: bytes, flags: int) -> int:
    """A new descriptor for the directory (flags: O_DIRECTORY) at `path` beneath `root`.

    A symbolic link on the way or at the end is ENOTDIR, with openat2 and without.
    """
    try:
        return _in_steps(root, path, flags)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fsdecode(path)) from exc
        raise


def _in_steps(root: int, path: bytes, flags: int) -> int:
    if not path:
        return _openat2(root, b".", flags)
    _check(path)
    if len(path) <= _STEP_BYTES:
        return _openat2(root, path, flags)
    current = os.dup(root)
    try:
        parts = path.split(b"/")
        while parts:
            take, length = 1, len(parts[0])
            while take < len(parts) and length + 1 + len(parts[take]) <= _STEP_BYTES:
                length += 1 + len(parts[take])
                take += 1
            step, parts = b"/".join(parts[:take]), parts[take:]
            found = _openat2(current, step, os.O_PATH | os.O_DIRECTORY if parts else flags)
            os.close(current)
            current = found
        result, current = current, -1
        return result
    finally:
        if current >= 0:
            os.close(current)


@contextmanager
def parent_of(root: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """The directory's descriptor and the last component of `path`, for the *at() calls."""
    directory, _, name = path.rpartition(b"/")
    if not name and not directory:  # the root itself
        yield root, b"."
        return
    _check(path)
    if len(name) > NAME_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    if not directory:
        yield root, name
        return
    descriptor = open_beneath(root, directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


def renameat2(old: int, old_name: bytes, new: int, new_name: bytes, flags: int) -> None:
    """renameat2(2), which Python lacks."""
    done = _libc.syscall(
        ctypes.c_long(_RENAME),
        ctypes.c_int(old),
        ctypes.c_char_p(old_name),
        ctypes.c_int(new),
        ctypes.c_char_p(new_name),
        ctypes.c_uint(flags),
    )
    if done:
        _raise(old_name)
