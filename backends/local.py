"""``file://``: a directory of this machine.

One O_PATH descriptor of the root is all that is kept open besides open files and directories; every
operation is confined beneath it. What was read is dropped from the host's page cache, so that no
page is cached twice.
"""

from __future__ import annotations

import errno
import os
import stat as st
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote_to_bytes

from storagecache.backend import Backend, DirectoryStream, File, Limiter, Properties
from storagecache.errors import BackendError, ConfigError
from storagecache.types import Attributes, Changes, FilesystemStatistics, Owner

from .beneath import open_beneath, parent_of, renameat2
from .local_files import Descriptor, LocalFile, LocalStream, times_of

T = TypeVar("T")

_OPEN_FLAGS: Final = os.O_ACCMODE | os.O_TRUNC | os.O_SYNC | os.O_DSYNC
_WORKERS: Final = 16


class LocalBackend(Backend):
    """A directory of this machine.

    New nodes get their owner only where this process is root; elsewhere they are its own. With
    `direct`, files opened for reading only are read past the host's page cache (O_DIRECT) where the
    store can do that.
    """

    def __init__(self, root: bytes, *, workers: int = _WORKERS, direct: bool = False) -> None:
        self._path = root
        self._direct = direct
        self._root = -1
        self._device = 0
        self._limiter = Limiter(workers)
        self.properties = Properties(read_max_bytes=1 << 20, workers=workers)

    @classmethod
    def from_url(cls, url: SplitResult) -> LocalBackend:
        if url.netloc:
            raise ValueError(f"a host in a file URL: write file:///{url.netloc}{url.path}")
        path = unquote_to_bytes(url.path)
        if not path.startswith(b"/") or b"\0" in path:
            raise ValueError(f"{url.path!r} is no absolute path")
        workers, direct = _WORKERS, False
        for key, value in parse_qsl(url.query, keep_blank_values=True):
            if key == "workers":
                if not (value.isascii() and value.isdecimal() and 1 <= int(value[:9]) <= 1024):
                    raise ValueError(f"workers: {value!r} is not from 1 to 1024")
                workers = int(value)
            elif key == "direct":
                if value not in ("true", "false"):
                    raise ValueError(f"direct: {value!r} is not true or false")
                direct = value == "true"
            else:
                raise ValueError(f"unknown parameter {key!r} (known: direct workers)")
        return cls(path, workers=workers, direct=direct)

    async def start(self) -> None:
        def open_root() -> tuple[int, int]:
            root = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            return root, os.fstat(root).st_dev

        try:
            self._root, self._device = await self._limiter.run(open_root)
        except BackendError as exc:
            raise ConfigError(os.fsdecode(self._path), os.strerror(exc.errno)) from exc

    async def aclose(self) -> None:
        if self._root >= 0:
            root, self._root = self._root, -1
            os.close(root)

    # shared by files and names

    def attributes(self, status: os.stat_result) -> Attributes:
        """Attributes from a stat result; objects on other devices get a mixed number."""
        object_id = status.st_ino
        if status.st_dev != self._device:
            mixed = blake2b(b"%d:%d" % (status.st_dev, status.st_ino), digest_size=8).digest()
            object_id = int.from_bytes(mixed, "little") >> 1
        return Attributes(
            object_id,
            status.st_mode,
            status.st_nlink,
            status.st_uid,
            status.st_gid,
            status.st_rdev,
            status.st_size,
            status.st_blocks,
            status.st_atime_ns,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )

    def _lstat(self, directory: int, name: bytes) -> Attributes:
        return self.attributes(os.stat(name, dir_fd=directory, follow_symlinks=False))

    # names

    async def stat(self, path: bytes) -> Attributes:
        return await self._limiter.run(self._stat, path)

    def _stat(self, path: bytes) -> Attributes:
        with parent_of(self._root, path) as (directory, name):
            return self._lstat(directory, name)

    async def open_directory(self, path: bytes) -> DirectoryStream:
        def open_it() -> LocalStream:  # whole, so that an abandoned one closes itself
            descriptor = Descriptor(open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY))
            return LocalStream(self.attributes, self._limiter, descriptor)

        return await self._limiter.run(open_it)

    async def open(self, path: bytes, flags: int) -> File:
        return await self._limiter.run(self._open, path, flags)

    def _open(self, path: bytes, flags: int) -> File:
        # O_NONBLOCK: a FIFO put in the file's place must not hang the thread
        passed = flags & _OPEN_FLAGS | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        direct = self._direct and flags & os.O_ACCMODE == os.O_RDONLY
        with parent_of(self._root, path) as (directory, name):
            try:
                number = os.open(name, passed | (os.O_DIRECT if direct else 0), dir_fd=directory)
            except OSError as exc:
                if not direct or exc.errno != errno.EINVAL:
                    raise
                direct = False  # a store without O_DIRECT
                number = os.open(name, passed, dir_fd=directory)
        descriptor = Descriptor(number)
        try:
            file = LocalFile(self.attributes, self._limiter, descriptor, direct=direct)
            if not st.S_ISREG(file.opened.mode):
                code = errno.EISDIR if st.S_ISDIR(file.opened.mode) else errno.ENXIO
                raise OSError(code, os.strerror(code))
        except BaseException:
            descriptor.close()
            raise
        return file

    async def create(
        self, path: bytes, flags: int, mode: int, owner: Owner | None
    ) -> tuple[File, Attributes]:
        file = await self._limiter.run(self._create, path, flags, mode, owner)
        return file, file.opened

    def _create(self, path: bytes, flags: int, mode: int, owner: Owner | None) -> LocalFile:
        with parent_of(self._root, path) as (directory, name):
            number = os.open(
                name,
                flags & _OPEN_FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                mode=mode & 0o777,
                dir_fd=directory,
            )
            descriptor = Descriptor(number)
            try:
                if owner is not None and os.geteuid() == 0:
                    os.fchown(number, owner.uid, self._group_for(directory, owner))
                os.fchmod(number, stat_mode(mode))  # whatever the umask; chown clears suid
                return LocalFile(self.attributes, self._limiter, descriptor, direct=False)
            except BaseException:
                descriptor.close()
                raise

    @staticmethod
    def _group_for(directory: int, owner: Owner | None) -> int:
        """The group of a new node: its parent's with set-group-id, else the owner's; -1: leave."""
        if owner is None or os.stat(b".", dir_fd=directory).st_mode & st.S_ISGID:
            return -1
        return owner.gid

    def _own(self, directory: int, name: bytes, owner: Owner | None) -> None:
        if owner is not None and os.geteuid() == 0:
            gid = self._group_for(directory, owner)
            os.chown(name, owner.uid, gid, dir_fd=directory, follow_symlinks=False)

    async def setattr(self, path: bytes, changes: Changes) -> Attributes:
        return await self._limiter.run(self._setattr, path, changes)

    def _setattr(self, path: bytes, changes: Changes) -> Attributes:
        with parent_of(self._root, path) as (directory, name):
            if changes.uid is not None or changes.gid is not None:
                os.chown(
                    name,
                    -1 if changes.uid is None else changes.uid,
                    -1 if changes.gid is None else changes.gid,
                    dir_fd=directory,
                    follow_symlinks=False,
                )
            if changes.mode is not None:
                self._chmod(directory, name, changes.mode)
            if changes.size is not None:
                descriptor = os.open(
                    name,
                    os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK,
                    dir_fd=directory,
                )
                try:
                    os.ftruncate(descriptor, changes.size)
                finally:
                    os.close(descriptor)
            if changes.atime_ns is not None or changes.mtime_ns is not None:
                times = times_of(changes, os.stat(name, dir_fd=directory, follow_symlinks=False))
                os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
            return self._lstat(directory, name)

    @staticmethod
    def _chmod(directory: int, name: bytes, mode: int) -> None:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            if st.S_ISLNK(os.fstat(descriptor).st_mode):
                raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
            os.chmod(f"/proc/self/fd/{descriptor}", mode)  # fchmod refuses O_PATH
        finally:
            os.close(descriptor)

    async def mkdir(self, path: bytes, mode: int, owner: Owner | None) -> Attributes:
        def make() -> Attributes:
            with parent_of(self._root, path) as (directory, name):
                os.mkdir(name, mode & 0o777, dir_fd=directory)
                inherited = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                self._own(directory, name, owner)
                self._chmod(directory, name, stat_mode(mode) | (inherited & st.S_ISGID))
                return self._lstat(directory, name)

        return await self._limiter.run(make)

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner | None) -> Attributes:
        def make() -> Attributes:
            with parent_of(self._root, path) as (directory, name):
                os.mknod(name, mode, rdev, dir_fd=directory)
                self._own(directory, name, owner)
                self._chmod(directory, name, stat_mode(mode))
                return self._lstat(directory, name)

        return await self._limiter.run(make)

    async def symlink(self, path: bytes, target: bytes, owner: Owner | None) -> Attributes:
        def make() -> Attributes:
            with parent_of(self._root, path) as (directory, name):
                os.symlink(target, name, dir_fd=directory)
                self._own(directory, name, owner)
                return self._lstat(directory, name)

        return await self._limiter.run(make)

    async def readlink(self, path: bytes) -> bytes:
        def read() -> bytes:
            with parent_of(self._root, path) as (directory, name):
                return os.readlink(name, dir_fd=directory)

        return await self._limiter.run(read)

    async def link(self, old: bytes, new: bytes) -> Attributes:
        def make() -> Attributes:
            with (
                parent_of(self._root, old) as (source, source_name),
                parent_of(self._root, new) as (target, target_name),
            ):
                os.link(
                    source_name,
                    target_name,
                    src_dir_fd=source,
                    dst_dir_fd=target,
                    follow_symlinks=False,
                )
                return self._lstat(target, target_name)

        return await self._limiter.run(make)

    async def unlink(self, path: bytes) -> None:
        def remove() -> None:
            with parent_of(self._root, path) as (directory, name):
                os.unlink(name, dir_fd=directory)

        await self._limiter.run(remove)

    async def rmdir(self, path: bytes) -> None:
        def remove() -> None:
            with parent_of(self._root, path) as (directory, name):
                os.rmdir(name, dir_fd=directory)

        await self._limiter.run(remove)

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        def move() -> None:
            if flags & ~3:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            with (
                parent_of(self._root, old) as (source, source_name),
                parent_of(self._root, new) as (target, target_name),
            ):
                renameat2(source, source_name, target, target_name, flags)

        await self._limiter.run(move)

    # extended attributes

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        return await self._limiter.run(self._xattr, path, lambda p: os.getxattr(p, name))

    async def setxattr(self, path: bytes, name: bytes, value: bytes, flags: int) -> None:
        await self._limiter.run(self._xattr, path, lambda p: os.setxattr(p, name, value, flags))

    async def listxattr(self, path: bytes) -> list[bytes]:
        def names(p: str) -> list[bytes]:
            return [os.fsencode(name) for name in os.listxattr(p)]

        try:
            return await self._limiter.run(self._xattr, path, names)
        except BackendError as exc:
            if exc.errno == errno.ENOTSUP:  # a symbolic link, or a store without any
                return []
            raise

    async def removexattr(self, path: bytes, name: bytes) -> None:
        await self._limiter.run(self._xattr, path, lambda p: os.removexattr(p, name))

    def _xattr(self, path: bytes, call: Callable[[str], T]) -> T:
        with parent_of(self._root, path) as (directory, name):
            descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                if st.S_ISLNK(os.fstat(descriptor).st_mode):
                    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
                return call(f"/proc/self/fd/{descriptor}")
            finally:
                os.close(descriptor)

    # the whole

    async def statfs(self) -> FilesystemStatistics:
        def ask() -> FilesystemStatistics:
            found = os.statvfs(self._root)
            return FilesystemStatistics(
                found.f_bsize,
                found.f_frsize,
                found.f_blocks,
                found.f_bfree,
                found.f_bavail,
                found.f_files,
                found.f_ffree,
                found.f_favail,
                found.f_namemax,
            )

        return await self._limiter.run(ask)

    async def fsync_directory(self, path: bytes) -> None:
        def sync() -> None:
            descriptor = open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

        await self._limiter.run(sync)

    def statistics(self) -> dict[str, float]:
        return {"threads": self._limiter.borrowed}


def stat_mode(mode: int) -> int:
    """The permission bits of a mode, with suid, sgid and sticky."""
    return mode & 0o7777
