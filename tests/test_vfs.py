"""The filesystem without FUSE: how often it asks its backends, and what it forgets."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from storagecache._core import Cache
from storagecache.backend import Params, open_backend
from storagecache.cache import Device, PageCache
from storagecache.errors import BackendError
from storagecache.metrics import MeteredBackend
from storagecache.types import Changes, Owner
from storagecache.vfs import Filesystem, Inode, Store
from storagecache.vfs.stores import PathLock, Timeouts, salts

ME = Owner(0, 0)
LONG = Timeouts(attribute=60.0)


@asynccontextmanager
async def filesystem(*layers: Params, memory: int = 4 << 20) -> AsyncIterator[Filesystem]:
    """One memory store at /s."""
    core = Cache(policy="lazy-clock", memory_bytes=memory, page_bytes=65536, backends=1)
    backend = MeteredBackend(open_backend("memory://", layers))
    await backend.start()
    async with trio.open_nursery() as nursery:
        store = Store(
            "s", (b"s",), backend, Device(0, 1 << 20, whole_pages=True), Timeouts(attribute=60.0)
        )
        one = Filesystem(PageCache(core, nursery), [store], nursery)
        await one.start()
        yield one
        await trio.testing.wait_all_tasks_blocked()
        assert one.cache.fetches == 0
        assert one.handles == {}
        status = core.statistics()
        assert status["pinned_pages"] == status["dirty_bytes"] == 0
        core.check_invariants()
        nursery.cancel_scope.cancel()


def root_of(one: Filesystem) -> Inode:
    root = one.stores[0].root
    assert root is not None
    return root


def calls(one: Filesystem) -> dict[str, int]:
    return {op: histogram.count for op, histogram in one.stores[0].backend.durations.items()}


async def made(one: Filesystem, name: bytes, data: bytes) -> Inode:
    number, inode = await one.create(root_of(one), name, 0o644, os.O_RDWR, ME)
    await one.write(number, 0, data)
    await one.release(number)
    return inode


async def test_a_lookup_asks_once_and_a_cached_one_not_at_all() -> None:
    async with filesystem() as one:
        await made(one, b"f", b"x")
        root = root_of(one)
        inode = await one.lookup(root, b"f")
        assert inode is not None
        one.inodes.forget(inode, inode.lookups)
        await trio.testing.wait_all_tasks_blocked()  # the graft is asked anew after a change
        before = sum(calls(one).values())
        assert await one.lookup(root, b"f") is not None
        assert sum(calls(one).values()) == before + 1
        for _ in range(5):
            assert await one.lookup(root, b"f") is not None
            await one.getattr(await found(one, b"f"))
        assert sum(calls(one).values()) == before + 1
        assert await one.lookup(root, b"none") is None
        assert sum(calls(one).values()) == before + 2


async def found(one: Filesystem, name: bytes) -> Inode:
    inode = await one.lookup(root_of(one), name)
    assert inode is not None
    return inode


async def test_the_root_and_the_grafts_ask_nobody() -> None:
    async with filesystem({"type": "fault"}) as one:
        one.stores[0].backend.control("fault", hang=True)
        graft = await one.lookup(one.inodes.root, b"s")
        assert graft is root_of(one)
        with trio.fail_after(1):
            assert (await one.getattr(graft)).nlink == 2
            assert await one.lookup(one.inodes.root, b"x") is None
        one.stores[0].backend.control("fault", clear=True)


async def test_forgotten_inodes_leave_but_their_pages_stay() -> None:
    async with filesystem() as one:
        inode = await made(one, b"f", bytes(200_000))
        known = len(one.inodes)
        one.inodes.forget(inode, inode.lookups)
        assert len(one.inodes) == known - 1
        again = await found(one, b"f")
        number, same = await one.open(again, os.O_RDONLY)
        assert same
        assert one.read_now(number, 0, 1000) == bytes(1000)
        await one.release(number)


async def test_pages_of_removed_objects_go() -> None:
    async with filesystem() as one:
        inode = await made(one, b"f", bytes(200_000))
        await one.unlink(root_of(one), b"f")
        assert one.core.resident_pages() != []
        one.inodes.forget(inode, inode.lookups)
        assert one.core.resident_pages() == []


async def test_a_failed_fetch_fails_all_its_readers_and_is_not_cached() -> None:
    async with filesystem({"type": "fault"}) as one:
        inode = await made(one, b"f", b"y" * 10_000)
        one.core.invalidate(inode.slot)
        number, _ = await one.open(inode, os.O_RDONLY)
        control = one.stores[0].backend.control
        control("fault", error_probability=1.0, errno="EIO")
        codes = []

        async def reader() -> None:
            with pytest.raises(BackendError) as caught:
                await one.read(number, 0, 100)
            codes.append(caught.value.errno)

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(reader)
        assert codes == [errno.EIO] * 5
        assert calls(one)["read"] == 1
        control("fault", clear=True)
        assert bytes(await one.read(number, 0, 100)) == b"y" * 100
        await one.release(number)


async def test_a_write_during_a_fetch_is_never_undone_by_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with filesystem({"type": "fault"}) as one:
        inode = await made(one, b"f", b"old" * 1000)
        one.core.invalidate(inode.slot)
        number, _ = await one.open(inode, os.O_RDWR)
        results: list[bytes] = []

        async def reader() -> None:
            results.append(bytes(await one.read(number, 0, 3)))

        one.stores[0].backend.control("fault", stutter_s=5, stutter_every_s=10, operations="data")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader)
            await trio.testing.wait_all_tasks_blocked()
            one.core.write(inode.slot, 0, b"new")  # as a write that overtook the fetch
            await one.stores[0].backend.inner.setattr(b"f", Changes())
        assert results == [b"old"]  # fetched again: the backend still has the old bytes
        assert calls(one)["read"] == 2
        one.stores[0].backend.control("fault", clear=True)
        await one.write(number, 0, b"new")
        assert bytes(await one.read(number, 0, 6)) == b"newold"
        await one.release(number)


async def test_more_readers_than_frames_all_get_their_bytes() -> None:
    async with filesystem(memory=9 * 65536) as one:
        contents = os.urandom(4 << 20)
        inode = await made(one, b"f", contents[: 1 << 20])
        number, _ = await one.open(inode, os.O_RDWR)
        for offset in range(1 << 20, 4 << 20, 1 << 20):
            await one.write(number, offset, contents[offset : offset + (1 << 20)])
        answers: dict[int, bytes] = {}

        async def reader(offset: int) -> None:
            answers[offset] = bytes(await one.read(number, offset, 300_000))

        async with trio.open_nursery() as nursery:
            for offset in range(0, 3 << 20, 100_000):
                nursery.start_soon(reader, offset)
        for offset, answer in answers.items():
            assert answer == contents[offset : offset + 300_000]
        await one.release(number)


async def test_path_lock_keeps_a_rename_alone() -> None:
    lock = PathLock()
    order: list[str] = []

    async def user(name: str, go: trio.Event) -> None:
        async with lock.shared():
            order.append(f"{name} in")
            await go.wait()
            order.append(f"{name} out")

    async def renamer() -> None:
        async with lock.alone():
            order.append("alone")

    first, second = trio.Event(), trio.Event()
    second.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(user, "a", first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(renamer)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(user, "b", second)
        await trio.testing.wait_all_tasks_blocked()
        assert order == ["a in"]
        first.set()
    assert order == ["a in", "a out", "alone", "b in", "b out"]


def test_inode_numbers_depend_on_the_name_alone() -> None:
    assert salts(["a", "b"]) == salts(["b", "a"])[::-1]
    assert len(set(salts([str(number) for number in range(5000)]))) == 5000
