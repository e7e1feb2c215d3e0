"""What is particular to ``file://``: confinement, depth, descriptors."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
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
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
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
    ):
        with pytest.raises(BackendError) as caught:
            await call
        assert caught.value.errno in (errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
    assert (outside / "secret").read_bytes() == b"secret"
    assert os.listdir(outside) == ["secret"]
    await backend.aclose()


@pytest.mark.usefixtures("resolution")
async def test_depth_beyond_path_max(tmp_path: Path) -> None:
    backend = await started(tmp_path / "root")
    path = b""
    for level in range(300):
        path += (b"/" if path else b"") + b"%03d" % level + b"x" * 30
        await backend.mkdir(path, 0o755, None)
    assert len(path) > 2 * 4096
    await write_file(backend, path + b"/leaf", b"deep")
    file = await backend.open(path + b"/leaf", os.O_RDONLY)
    assert await read_file(file, 0, 10) == b"deep"
    await file.aclose()
    assert await names_in(backend, path) == [b"leaf"]
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
    ["file:relative", "file://host/x", "file:///x?workers=0", "file:///x?a=1", "ftp://x", "x"],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ConfigError, match="url"):
        open_backend(url)


async def test_memory_bound() -> None:
    backend = open_backend("memory://?size=10000")
    await write_file(backend, b"a", bytes(8000))
    await refused(errno.ENOSPC, write_file(backend, b"b", bytes(3000)))
    await backend.unlink(b"a")
