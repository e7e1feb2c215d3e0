"""The conformance suite that every backend and every wrapper passes.

A test class inherits `BackendSuite` and defines `make`, which returns a fresh, empty backend that
was not started. Run under pytest-trio.
"""

from __future__ import annotations

import errno
import os
import stat as st
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .backend import Backend, File
from .errors import BackendError
from .types import Attributes, Changes, Owner

_ME = Owner(os.geteuid(), os.getegid())
_ODD_NAMES = (b"-rf", b"...", b"new\nline", b"\xff\xfe", b"a b", b"%2e%2e", b"\\", b"x" * 255)


async def refused(code: int, call: Awaitable[Any]) -> None:
    """`call` raises BackendError with this errno."""
    try:
        await call
    except BackendError as exc:
        assert exc.errno == code, f"{errno.errorcode[exc.errno]}, not {errno.errorcode[code]}"
        return
    raise AssertionError(f"not refused with {errno.errorcode[code]}")


async def write_file(backend: Backend, path: bytes, data: bytes = b"") -> Attributes:
    """A new file with these contents."""
    file, attributes = await backend.create(path, os.O_RDWR, 0o644, _ME)
    try:
        return await file.write(0, data) if data else attributes
    finally:
        await file.aclose()


async def read_file(file: File, offset: int, size: int) -> bytes:
    """What `read_into` gives for one buffer."""
    buffer = bytearray(size)
    got = await file.read_into(offset, [memoryview(buffer)])
    return bytes(buffer[:got])


async def names_in(backend: Backend, path: bytes, batch: int = 100) -> list[bytes]:
    """All names of a directory, in order of coming."""
    stream = await backend.open_directory(path)
    found: list[bytes] = []
    while entries := await stream.next(batch):
        assert len(entries) <= batch
        found.extend(entry.name for entry in entries)
    await stream.aclose()
    return found


class BackendSuite:
    """Every promise of the Backend ABC."""

    @abstractmethod
    def make(self, tmp_path: Path) -> Backend:
        """A fresh, empty backend."""

    @asynccontextmanager
    async def started(self, tmp_path: Path) -> AsyncIterator[Backend]:
        backend = self.make(tmp_path)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.aclose()

    async def test_root_is_a_directory(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            assert st.S_ISDIR((await backend.stat(b"")).mode)
            assert await names_in(backend, b"") == []

    async def test_create_write_read(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            file, created = await backend.create(b"f", os.O_RDWR, 0o640, _ME)
            assert st.S_ISREG(created.mode)
            assert (st.S_IMODE(created.mode), created.size, created.nlink) == (0o640, 0, 1)
            assert (await file.write(0, b"hello world")).size == 11
            assert await read_file(file, 6, 100) == b"world"
            assert await read_file(file, 11, 10) == b""
            assert await read_file(file, 500, 10) == b""
            assert (await file.write(6, b"there")).size == 11
            parts = [bytearray(3), bytearray(4), bytearray(20)]
            assert await file.read_into(0, [memoryview(part) for part in parts]) == 11
            assert bytes(parts[0] + parts[1] + parts[2][:4]) == b"hello there"
            await file.flush()
            await file.fsync(data_only=True)
            await file.fsync(data_only=False)
            await file.aclose()
            await refused(errno.EEXIST, backend.create(b"f", os.O_RDWR, 0o600, _ME))
            again = await backend.open(b"f", os.O_RDONLY)
            assert await read_file(again, 0, 11) == b"hello there"
            await again.aclose()

    async def test_sparse_and_truncated(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            file, _ = await backend.create(b"f", os.O_RDWR, 0o600, _ME)
            assert (await file.write(100_000, b"end")).size == 100_003
            assert await read_file(file, 99_990, 20) == bytes(10) + b"end"
            assert (await file.setattr(Changes(size=5))).size == 5
            assert (await file.setattr(Changes(size=10))).size == 10
            assert await read_file(file, 0, 20) == bytes(10)
            await file.aclose()
            assert (await backend.setattr(b"f", Changes(size=3))).size == 3
            cut = await backend.open(b"f", os.O_RDWR | os.O_TRUNC)
            assert (await cut.stat()).size == 0
            await cut.aclose()

    async def test_errors_of_names(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            await write_file(backend, b"file")
            await backend.mkdir(b"dir", 0o755, _ME)
            await write_file(backend, b"dir/inside")
            await refused(errno.ENOENT, backend.stat(b"none"))
            await refused(errno.ENOENT, backend.open(b"none", os.O_RDONLY))
            await refused(errno.ENOENT, backend.mkdir(b"none/x", 0o755, _ME))
            await refused(errno.ENOTDIR, backend.stat(b"file/x"))
            await refused(errno.ENOTDIR, backend.open_directory(b"file"))
            await refused(errno.EEXIST, backend.mkdir(b"dir", 0o755, _ME))
            await refused(errno.ENOTEMPTY, backend.rmdir(b"dir"))
            await refused(errno.ENOTDIR, backend.rmdir(b"file"))
            await refused(errno.EISDIR, backend.unlink(b"dir"))
            await refused(errno.ENOENT, backend.unlink(b"none"))
            await refused(errno.ENAMETOOLONG, backend.stat(b"x" * 256))
            await refused(errno.ENAMETOOLONG, backend.mkdir(b"x" * 256, 0o755, _ME))

    async def test_odd_names_are_exact(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            for name in _ODD_NAMES:
                await write_file(backend, name, name)
            assert sorted(await names_in(backend, b"", 3)) == sorted(_ODD_NAMES)
            for name in _ODD_NAMES:
                file = await backend.open(name, os.O_RDONLY)
                assert await read_file(file, 0, 300) == name
                await file.aclose()

    async def test_unlinked_open_file(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            file, _ = await backend.create(b"f", os.O_RDWR, 0o600, _ME)
            await backend.unlink(b"f")
            await refused(errno.ENOENT, backend.stat(b"f"))
            await file.write(0, b"still")
            assert await read_file(file, 0, 10) == b"still"
            assert (await file.stat()).nlink == 0
            assert (await file.setattr(Changes(size=2, mode=0o640))).size == 2
            await file.fsync(data_only=False)
            await file.aclose()
            await write_file(backend, b"g", b"old")
            old = await backend.open(b"g", os.O_RDONLY)
            await write_file(backend, b"h", b"new")
            await backend.rename(b"h", b"g", 0)
            assert await read_file(old, 0, 10) == b"old"
            await old.aclose()

    async def test_rename(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            await backend.mkdir(b"d", 0o755, _ME)
            await backend.mkdir(b"d/sub", 0o755, _ME)
            first = await write_file(backend, b"a", b"1")
            await write_file(backend, b"b", b"22")
            await backend.rename(b"a", b"d/a", 0)
            moved = await backend.stat(b"d/a")
            assert (moved.object_id, moved.size) == (first.object_id, 1)
            await refused(errno.EEXIST, backend.rename(b"b", b"d/a", 1))
            await backend.rename(b"b", b"d/a", 2)
            assert ((await backend.stat(b"b")).size, (await backend.stat(b"d/a")).size) == (1, 2)
            await backend.rename(b"b", b"d/a", 0)
            await refused(errno.ENOENT, backend.stat(b"b"))
            await refused(errno.EINVAL, backend.rename(b"d", b"d/sub/x", 0))
            await refused(errno.EINVAL, backend.rename(b"d/a", b"c", 8))
            await refused(errno.ENOENT, backend.rename(b"none", b"c", 0))
            await refused(errno.EISDIR, backend.rename(b"d/a", b"d/sub", 0))
            await refused(errno.ENOTDIR, backend.rename(b"d/sub", b"d/a", 0))

    async def test_links(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            if backend.properties.hard_links:
                one = await write_file(backend, b"one", b"x")
                two = await backend.link(b"one", b"two")
                assert (two.object_id, two.nlink) == (one.object_id, 2)
                await backend.unlink(b"one")
                assert (await backend.stat(b"two")).nlink == 1
            if backend.properties.symlinks:
                made = await backend.symlink(b"sym", b"../../etc/passwd", _ME)
                assert st.S_ISLNK(made.mode)
                assert await backend.readlink(b"sym") == b"../../etc/passwd"
                assert st.S_ISLNK((await backend.stat(b"sym")).mode)
                await refused(errno.ELOOP, backend.open(b"sym", os.O_RDONLY))
                await write_file(backend, b"plain")
                await refused(errno.EINVAL, backend.readlink(b"plain"))

    async def test_attributes(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            await write_file(backend, b"f", b"abc")
            changed = await backend.setattr(b"f", Changes(mode=0o4711))
            assert st.S_IMODE(changed.mode) == 0o4711
            stamp = 1_234_567_890_123_456_789
            changed = await backend.setattr(b"f", Changes(mtime_ns=stamp))
            assert changed.mtime_ns == stamp
            assert (await backend.setattr(b"f", Changes(atime_ns=7))).atime_ns == 7
            assert (await backend.stat(b"f")).mtime_ns == stamp
            if os.geteuid() == 0 and backend.properties.ownership:
                owned = await backend.setattr(b"f", Changes(uid=12, gid=34))
                assert (owned.uid, owned.gid) == (12, 34)
                assert not owned.mode & st.S_ISUID
                await backend.setattr(b"", Changes(mode=0o777))
                file, theirs = await backend.create(b"g", os.O_RDWR, 0o6755, Owner(5, 6))
                assert (theirs.uid, theirs.gid, st.S_IMODE(theirs.mode)) == (5, 6, 0o6755)
                await file.aclose()
                await backend.mkdir(b"sg", 0o755, Owner(5, 6))
                await backend.setattr(b"sg", Changes(mode=0o2755))
                below = await backend.mkdir(b"sg/d", 0o700, Owner(7, 8))
                assert (below.uid, below.gid) == (7, 6)
                assert below.mode & st.S_ISGID

    async def test_attributes_come_back_from_every_change(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            file, made = await backend.create(b"f", os.O_RDWR, 0o600, _ME)
            assert made == await backend.stat(b"f") == await file.stat()
            assert await file.write(10, b"x") == await file.stat()
            stamps = Changes(mode=0o640, size=3, atime_ns=1, mtime_ns=1_000_000_007)
            changed = await file.setattr(stamps)
            assert (changed.size, changed.atime_ns, changed.mtime_ns) == (3, 1, 1_000_000_007)
            assert st.S_IMODE(changed.mode) == 0o640
            assert changed == await backend.stat(b"f")
            assert (await file.write(0, b"")).size == 3
            assert await file.read_into(0, [memoryview(bytearray())]) == 0
            await file.aclose()
            await refused(errno.ENOENT, backend.setattr(b"none", Changes(mode=0)))
            await refused(errno.EISDIR, backend.setattr(b"", Changes(size=0)))
            if backend.properties.symlinks:
                await backend.symlink(b"s", b"f", _ME)
                assert (await backend.setattr(b"s", Changes(mtime_ns=5))).mtime_ns == 5
                assert (await backend.stat(b"f")).mtime_ns == 1_000_000_007
                await refused(errno.ENOTSUP, backend.setattr(b"s", Changes(mode=0o600)))

    async def test_access_modes_and_kinds(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            await write_file(backend, b"f", b"abc")
            await backend.mkdir(b"d", 0o755, _ME)
            for flags in (os.O_RDONLY, os.O_RDWR):
                await refused(errno.EISDIR, backend.open(b"d", flags))
            file = await backend.open(b"f", os.O_RDONLY)
            await refused(errno.EBADF, file.write(0, b"x"))
            await file.aclose()
            file = await backend.open(b"f", os.O_WRONLY)
            await refused(errno.EBADF, read_file(file, 0, 3))
            assert (await file.write(3, b"d")).size == 4
            await file.aclose()
            if backend.properties.special_files:
                await backend.mknod(b"fifo", st.S_IFIFO | 0o600, 0, _ME)
                await refused(errno.ENXIO, backend.open(b"fifo", os.O_RDONLY))
                await refused(errno.EPERM, backend.mknod(b"x", st.S_IFDIR | 0o755, 0, _ME))

    async def test_errors_of_making(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            await write_file(backend, b"file")

            def makers(path: bytes) -> list[Awaitable[Any]]:
                found: list[Awaitable[Any]] = [
                    backend.create(path, os.O_RDWR, 0o600, _ME),
                    backend.mkdir(path, 0o755, _ME),
                ]
                if backend.properties.special_files:
                    found.append(backend.mknod(path, st.S_IFIFO | 0o600, 0, _ME))
                if backend.properties.symlinks:
                    found.append(backend.symlink(path, b"t", _ME))
                if backend.properties.hard_links:
                    found.append(backend.link(b"file", path))
                return found

            for path, code in (
                (b"file", errno.EEXIST),
                (b"none/x", errno.ENOENT),
                (b"file/x", errno.ENOTDIR),
                (b"x" * 256, errno.ENAMETOOLONG),
            ):
                for call in makers(path):
                    await refused(code, call)
            assert await names_in(backend, b"") == [b"file"]
            if backend.properties.hard_links:
                await backend.mkdir(b"d", 0o755, _ME)
                await refused(errno.ENOENT, backend.link(b"none", b"x"))
                await refused(errno.EPERM, backend.link(b"d", b"x"))

    async def test_a_link_is_no_way(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            if not backend.properties.symlinks:
                return
            await backend.mkdir(b"d", 0o755, _ME)
            await write_file(backend, b"d/f")
            await backend.symlink(b"s", b"d", _ME)
            await refused(errno.ENOTDIR, backend.stat(b"s/f"))
            await refused(errno.ENOTDIR, backend.open(b"s/f", os.O_RDONLY))
            await refused(errno.ENOTDIR, backend.unlink(b"s/f"))
            await refused(errno.ENOTDIR, backend.open_directory(b"s"))
            await refused(errno.ENOTDIR, backend.rmdir(b"s"))
            text = b"\xff\n/../" + b"y" * 200
            await backend.symlink(b"odd", text, _ME)
            assert await backend.readlink(b"odd") == text
            assert await backend.listxattr(b"odd") == []
            await backend.unlink(b"s")
            assert (await backend.stat(b"d/f")).nlink == 1

    async def test_rename_of_directories(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            for name in (b"a", b"a/x", b"b", b"full", b"full/x"):
                await backend.mkdir(name, 0o755, _ME)
            counted = (await backend.stat(b"a")).nlink == 3  # btrfs says 1 for any directory
            await refused(errno.ENOTEMPTY, backend.rename(b"a", b"full", 0))
            await refused(errno.EEXIST, backend.rename(b"a", b"b", 1))
            await refused(errno.ENOENT, backend.rename(b"a", b"none", 2))
            await refused(errno.EINVAL, backend.rename(b"full", b"full/x", 2))
            await refused(errno.EINVAL, backend.rename(b"a", b"b", 3))
            await refused(errno.ENAMETOOLONG, backend.rename(b"a", b"x" * 256, 0))
            await backend.rename(b"a", b"b", 0)
            assert sorted(await names_in(backend, b"")) == [b"b", b"full"]
            assert await names_in(backend, b"b") == [b"x"]
            await backend.rename(b"b", b"new", 1)
            await write_file(backend, b"file", b"1")
            await backend.rename(b"file", b"full/x", 2)
            assert (await backend.stat(b"full/x")).size == 1
            assert st.S_ISDIR((await backend.stat(b"file")).mode)
            await backend.rename(b"file", b"file", 0)
            if counted:
                assert (await backend.stat(b"full")).nlink == 2
                assert (await backend.stat(b"")).nlink == 5
            if backend.properties.hard_links:
                await backend.link(b"full/x", b"same")
                await backend.rename(b"same", b"full/x", 0)  # one object: nothing happens
                assert (await backend.stat(b"same")).nlink == 2

    async def test_a_deep_tree(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            paths = [b"level001"]
            for level in range(2, 101):
                paths.append(paths[-1] + b"/level%03d" % level)
            for path in paths:
                await backend.mkdir(path, 0o755, _ME)
            await write_file(backend, paths[-1] + b"/leaf", b"deep")
            assert await names_in(backend, paths[-1]) == [b"leaf"]
            await backend.rename(paths[-1] + b"/leaf", b"leaf", 0)
            for path in reversed(paths):
                await backend.rmdir(path)
            assert await names_in(backend, b"") == [b"leaf"]

    async def test_many_buffers(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            file, _ = await backend.create(b"f", os.O_RDWR, 0o600, _ME)
            data = bytes(number % 251 for number in range(8000))
            await file.write(0, data)
            parts = [bytearray(size % 7) for size in range(3000)]
            assert await file.read_into(5, [memoryview(part) for part in parts]) == 7995
            assert b"".join(parts)[:7995] == data[5:]
            await file.aclose()

    async def test_special_files(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            if backend.properties.special_files:
                fifo = await backend.mknod(b"fifo", st.S_IFIFO | 0o622, 0, _ME)
                assert st.S_ISFIFO(fifo.mode)
                assert st.S_IMODE(fifo.mode) == 0o622

    async def test_xattrs(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            if not backend.properties.xattrs:
                return
            await write_file(backend, b"f")
            await refused(errno.ENODATA, backend.getxattr(b"f", b"user.x"))
            await backend.setxattr(b"f", b"user.x", b"\0value", 0)
            assert await backend.getxattr(b"f", b"user.x") == b"\0value"
            assert b"user.x" in await backend.listxattr(b"f")
            await refused(errno.EEXIST, backend.setxattr(b"f", b"user.x", b"", os.XATTR_CREATE))
            await refused(errno.ENODATA, backend.setxattr(b"f", b"user.y", b"", os.XATTR_REPLACE))
            await backend.setxattr(b"f", b"user.x", b"", os.XATTR_REPLACE)
            assert await backend.getxattr(b"f", b"user.x") == b""
            await backend.setxattr(b"", b"user.x", b"of the root", 0)
            assert await backend.getxattr(b"", b"user.x") == b"of the root"
            await refused(errno.ENOENT, backend.getxattr(b"none", b"user.x"))
            await backend.removexattr(b"f", b"user.x")
            await refused(errno.ENODATA, backend.removexattr(b"f", b"user.x"))

    async def test_large_directory_comes_exactly_once(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            wanted = {b"%04d" % number for number in range(3000)}
            for name in wanted:
                await write_file(backend, name)
            found = await names_in(backend, b"", 97)
            assert len(found) == len(wanted)
            assert set(found) == wanted

    async def test_entries_may_vanish_while_listed(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            for number in range(200):
                await write_file(backend, b"%03d" % number)
            stream = await backend.open_directory(b"")
            seen = {entry.name for entry in await stream.next(50)}
            for number in range(0, 200, 2):
                await backend.unlink(b"%03d" % number)
            while entries := await stream.next(50):
                seen |= {entry.name for entry in entries}
            await stream.aclose()
            assert {b"%03d" % number for number in range(1, 200, 2)} <= seen

    async def test_the_whole(self, tmp_path: Path) -> None:
        async with self.started(tmp_path) as backend:
            whole = await backend.statfs()
            assert whole.blocks >= whole.blocks_free
            assert whole.name_max == 255
            await backend.mkdir(b"d", 0o755, _ME)
            await backend.fsync_directory(b"d")
            await backend.fsync_directory(b"")
            assert all(isinstance(value, int | float) for value in backend.statistics().values())
