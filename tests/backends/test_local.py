"""What is particular to ``file://``: confinement, depth, descriptors, O_DIRECT."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import threading
from pathlib import Path

import pytest
import trio
from storagecache_backends import beneath

from storagecache.backend import Backend, open_backend
from storagecache.errors import BackendError, ConfigError
from storagecache.testing import names_in, read_file, refused, write_file
from storagecache.types import Changes, Owner


async def started(root: Path) -> Backend:
    root.mkdir()
    backend = open_backend(f"file://{root}")
    await backend.start()
    return backend


@pytest.fixture(params=["openat2", "walk"])
def resolution(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beneath, "_has_openat2", request.param == "openat2")


@pytest.mark.usefixtures("resolution")
async def test_a_directory_swapped_for_a_symlink_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "below").mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    (outside / "below/secret").touch()
    backend = await started(tmp_path / "root")
    await backend.mkdir(b"d", 0o755, None)
    await write_file(backend, b"d/secret", b"inside")
    (tmp_path / "root/d").rename(tmp_path / "root/was")
    (tmp_path / "root/d").symlink_to(outside)
    for call in (
        backend.stat(b"d/secret"),
        backend.open(b"d/secret", os.O_RDWR),
        backend.unlink(b"d/secret"),
        backend.setattr(b"d/secret", Changes(mode=0)),
        backend.rename(b"d/secret", b"taken", 0),
        backend.open_directory(b"d"),
        backend.mkdir(b"d/new", 0o755, Owner(0, 0)),
        backend.stat(b"d/below/secret"),
        backend.unlink(b"d/below/secret"),
        backend.open_directory(b"d/below"),
    ):
        with pytest.raises(BackendError) as caught:
            await call
        assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
    assert (outside / "secret").read_bytes() == b"secret"
    assert sorted(os.listdir(outside)) == ["below", "secret"]
    assert os.listdir(outside / "below") == ["secret"]
    await backend.aclose()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "depth", "length"), [("openat2", 1500, 200), ("walk", 300, 200), ("walk", 700, 6)]
)
async def test_depth_beyond_path_max(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, depth: int, length: int
) -> None:
    monkeypatch.setattr(beneath, "_has_openat2", kind == "openat2")
    backend = await started(tmp_path / "root")
    paths = [b"x" * length]
    for _ in range(depth - 1):
        paths.append(paths[-1] + b"/" + b"x" * length)
    for path in paths:
        await backend.mkdir(path, 0o755, None)
    path = paths[-1]
    assert len(path) > 4096
    await write_file(backend, path + b"/leaf", b"deep")
    file = await backend.open(path + b"/leaf", os.O_RDONLY)
    assert await read_file(file, 0, 10) == b"deep"
    await file.aclose()
    assert await names_in(backend, path) == [b"leaf"]
    await refused(errno.ENAMETOOLONG, backend.stat(path + b"/" + b"y" * 256))
    await refused(errno.ENAMETOOLONG, backend.stat(b"y" * 5000 + b"/x"))
    await backend.rename(path + b"/leaf", b"leaf", 0)
    for path in reversed(paths):  # pytest's own removal would not come down here
        await backend.rmdir(path)
    await backend.aclose()


@pytest.mark.usefixtures("resolution")
async def test_paths_that_break_the_promise_are_refused(tmp_path: Path) -> None:
    backend = await started(tmp_path / "root")
    (tmp_path / "outside").write_bytes(b"secret")
    await backend.mkdir(b"d", 0o755, None)
    await write_file(backend, b"f")
    for path in (b"..", b"../outside", b"d/../../outside", b"d/..", b".", b"d/.", b"/f", b"d//f"):
        await refused(errno.EINVAL, backend.stat(path))
        await refused(errno.EINVAL, backend.open_directory(path))
        await refused(errno.EINVAL, backend.rename(b"f", path, 0))
    await refused(errno.EINVAL, backend.unlink(b"f\0g"))
    await refused(errno.EINVAL, backend.open_directory(b"d\0g"))
    assert (tmp_path / "outside").read_bytes() == b"secret"
    assert sorted(os.listdir(tmp_path / "root")) == ["d", "f"]
    await backend.aclose()


@pytest.mark.usefixtures("resolution")
async def test_a_directory_that_keeps_being_swapped(tmp_path: Path) -> None:
    """Another process exchanges a directory for a link to the outside while we work in it."""
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub/f").write_bytes(b"secret")
    backend = await started(tmp_path / "root")
    await backend.mkdir(b"d", 0o755, None)
    await backend.mkdir(b"d/sub", 0o755, None)
    await write_file(backend, b"d/sub/f", b"inside")
    (tmp_path / "root/link").symlink_to(outside)
    root = os.open(tmp_path / "root", os.O_PATH)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            beneath.renameat2(root, b"d", root, b"link", 2)

    read = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, swap)
        try:
            for number in range(300):
                try:
                    file = await backend.open(b"d/sub/f", os.O_RDWR)
                except BackendError as exc:
                    assert exc.errno == errno.ENOTDIR
                    continue
                assert await read_file(file, 0, 10) == b"inside"
                await file.aclose()
                read += 1
                for call in (
                    write_file(backend, b"d/sub/%d" % number),
                    backend.unlink(b"d/sub/%d" % number),
                ):
                    try:
                        await call
                    except BackendError as exc:
                        assert exc.errno in (errno.ENOTDIR, errno.ENOENT)
        finally:
            done.set()
    os.close(root)
    assert read
    assert os.listdir(outside / "sub") == ["f"]
    assert (outside / "sub/f").read_bytes() == b"secret"
    await backend.aclose()


async def test_a_link_is_handed_out_as_text(tmp_path: Path) -> None:
    backend = await started(tmp_path / "root")
    (tmp_path / "outside").write_bytes(b"secret")
    await backend.symlink(b"s", os.fsencode(tmp_path / "outside"), None)
    assert await backend.readlink(b"s") == os.fsencode(tmp_path / "outside")
    await refused(errno.ELOOP, backend.open(b"s", os.O_RDWR | os.O_TRUNC))
    await refused(errno.ELOOP, backend.setattr(b"s", Changes(size=0)))
    await refused(errno.ENOTSUP, backend.setxattr(b"s", b"user.x", b"", 0))
    await refused(errno.EEXIST, backend.create(b"s", os.O_RDWR, 0o600, None))
    assert (tmp_path / "outside").read_bytes() == b"secret"
    await backend.aclose()


async def test_regression_a_late_write_misses_the_next_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write whose caller was cancelled ends in its own file, closed or not."""
    backend = await started(tmp_path / "root")
    file, _ = await backend.create(b"one", os.O_RDWR, 0o600, None)
    entered, go_on, ended = threading.Event(), threading.Event(), threading.Event()
    pwrite = os.pwrite

    def late(descriptor: int, data: memoryview, offset: int) -> int:
        entered.set()
        assert go_on.wait(10)
        try:
            return pwrite(descriptor, data, offset)
        finally:
            ended.set()

    monkeypatch.setattr(os, "pwrite", late)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.write, 0, b"late")
        await trio.to_thread.run_sync(entered.wait, 10)
        nursery.cancel_scope.cancel()
    await file.aclose()
    others = [(await backend.create(b"%d" % n, os.O_RDWR, 0o600, None))[0] for n in range(4)]
    go_on.set()
    assert await trio.to_thread.run_sync(ended.wait, 10)
    assert [(await other.stat()).size for other in others] == [0] * 4
    assert (tmp_path / "root/one").read_bytes() == b"late"
    await refused(errno.EBADF, file.stat())
    for other in others:
        await other.aclose()
    await backend.aclose()


async def test_regression_an_abandoned_open_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = await started(tmp_path / "root")
    await backend.mkdir(b"d", 0o755, None)
    await write_file(backend, b"f")
    before = len(os.listdir("/proc/self/fd"))
    entered, go_on = threading.Semaphore(0), threading.Event()
    check = beneath._check

    def slow(path: bytes) -> None:
        entered.release()
        assert go_on.wait(10)
        check(path)

    monkeypatch.setattr(beneath, "_check", slow)
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(backend.open_directory, b"d")
            nursery.start_soon(backend.open, b"f", os.O_RDONLY)
        for _ in range(8):
            await trio.to_thread.run_sync(entered.acquire)
        nursery.cancel_scope.cancel()
    go_on.set()
    with trio.fail_after(10):
        while backend.statistics()["threads"]:
            await trio.lowlevel.checkpoint()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    await backend.aclose()


async def test_closing_when_cancelled_closes(tmp_path: Path) -> None:
    backend = await started(tmp_path / "root")
    before = len(os.listdir("/proc/self/fd"))
    file, _ = await backend.create(b"f", os.O_RDWR, 0o600, None)
    stream = await backend.open_directory(b"")
    for closing in (file, stream):
        with trio.CancelScope() as scope:
            scope.cancel()
            await closing.aclose()
        assert scope.cancelled_caught
    assert len(os.listdir("/proc/self/fd")) == before
    await backend.aclose()


async def test_direct_reads(tmp_path: Path) -> None:
    data = os.urandom(3 * 4096 + 100)
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/f").write_bytes(data)
    backend = open_backend(f"file://{tmp_path}/a%20b?direct=true&workers=2")
    await backend.start()
    file = await backend.open(b"f", os.O_RDONLY)
    (number,) = [
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{name}") == str(tmp_path / "a b/f")
    ]
    assert fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DIRECT
    with mmap.mmap(-1, 8 * 4096) as area:
        with memoryview(area) as view, view[:4096] as one, view[8192:28672] as two:
            assert await file.read_into(0, [one, two]) == len(data)  # aligned: no copy
        assert area[:4096] + area[8192 : 8192 + len(data) - 4096] == data
    for offset, size in (
        (0, 20_000),
        (1, 5),
        (4090, 12),
        (12_288, 50),
        (12_300, 500),
        (4096, 4096),
    ):
        assert await read_file(file, offset, size) == data[offset : offset + size]
    parts = [bytearray(7), bytearray(5000)]
    assert await file.read_into(100, [memoryview(part) for part in parts]) == 5007
    assert b"".join(parts) == data[100:5107]
    assert await read_file(file, len(data), 10) == await read_file(file, 1 << 20, 10) == b""
    await file.aclose()
    await backend.aclose()


async def test_one_descriptor_for_the_root_and_one_per_open_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    backend = await started(tmp_path / "root")
    for number in range(20):
        await write_file(backend, b"%d" % number, b"x")
    files = [await backend.open(b"%d" % number, os.O_RDONLY) for number in range(20)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1 + 20
    for file in files:
        await file.aclose()
    await backend.aclose()
    assert len(os.listdir("/proc/self/fd")) == before


async def test_missing_roots_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        await open_backend(f"file://{tmp_path}/nowhere").start()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="Not a directory"):
        await open_backend(f"file://{tmp_path}/file").start()


@pytest.mark.parametrize(
    "url",
    [
        "file:relative",
        "file://host/x",
        "file:///x?workers=0",
        "file:///x?a=1",
        "file:///x?direct=1",
        "ftp://x",
        "x",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        open_backend(url)


async def test_memory_bound() -> None:
    backend = open_backend("memory://?size=10000")
    await write_file(backend, b"a", bytes(8000))
    await refused(errno.ENOSPC, write_file(backend, b"b", bytes(3000)))
    await backend.unlink(b"a")
    kept, _ = await backend.create(b"kept", os.O_RDWR, 0o600, None)
    await kept.write(0, bytes(8000))
    await backend.unlink(b"kept")
    await refused(errno.ENOSPC, write_file(backend, b"c", bytes(3000)))  # an open file stays
    await kept.aclose()
    await write_file(backend, b"d", bytes(8000))
    await write_file(backend, b"e")
    await backend.rename(b"e", b"d", 0)
    await write_file(backend, b"f", bytes(10000))
    assert (await backend.statfs()).blocks_free == 0
