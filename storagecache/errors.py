"""The exceptions of storagecache; each has an errno and says whether trying again may help.

StorageCacheError                 EIO
├── ConfigError                   EINVAL     bad configuration; the message names the key
├── ControlError                  EINVAL     a control command that cannot be carried out
└── BackendError                  any        a backend's answer, with the backend's own errno
    ├── UnsupportedError          ENOTSUP    the backend has no such operation
    ├── DeadlineError             ETIMEDOUT  no answer within the deadline      (retryable)
    ├── StaleError                ESTALE     the object changed under an open handle
    └── ShortReadError            EIO        fewer bytes than the object's size (retryable)
"""

from __future__ import annotations

import errno as _errno
import os

RETRYABLE_ERRNOS = frozenset(
    {
        _errno.EIO,
        _errno.EAGAIN,
        _errno.EINTR,
        _errno.ETIMEDOUT,
        _errno.ECONNRESET,
        _errno.ECONNABORTED,
        _errno.ECONNREFUSED,
        _errno.EHOSTUNREACH,
        _errno.ENETUNREACH,
        _errno.EPIPE,
        _errno.EREMOTEIO,
    }
)


class StorageCacheError(Exception):
    """Anything storagecache raises on purpose."""

    errno: int = _errno.EIO
    retryable: bool = False


class ConfigError(StorageCacheError):
    """Bad configuration. ``key`` names the key, file or path in the user's own words."""

    errno = _errno.EINVAL

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key


class ControlError(StorageCacheError):
    """A control command that cannot be carried out."""

    errno = _errno.EINVAL


class BackendError(StorageCacheError):
    """A backend's answer to a call that failed, with the errno its caller shall see."""

    def __init__(self, errno: int | None = None, message: str = "") -> None:
        if errno is not None:
            self.errno = errno
            self.retryable = errno in RETRYABLE_ERRNOS
        super().__init__(message or os.strerror(self.errno))

    @classmethod
    def from_os_error(cls, exc: OSError) -> BackendError:
        """The same failure as a domain error; an OSError without errno becomes EIO."""
        return cls(exc.errno or _errno.EIO, str(exc))


class UnsupportedError(BackendError):
    errno = _errno.ENOTSUP


class DeadlineError(BackendError):
    errno = _errno.ETIMEDOUT
    retryable = True


class StaleError(BackendError):
    errno = _errno.ESTALE


class ShortReadError(BackendError):
    errno = _errno.EIO
    retryable = True
