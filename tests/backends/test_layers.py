"""What the layers do to time and errors; by trio's clock, so that nothing is waited for."""

from __future__ import annotations

import errno
import os

import pytest
import trio
import trio.testing

from storagecache._core import Disk
from storagecache.backend import Backend, File, Params, open_backend
from storagecache.errors import BackendError, ConfigError
from storagecache.testing import read_file, refused, write_file
from storagecache.types import Owner

SIZE = 1 << 20


async def opened(*layers: Params) -> tuple[Backend, File]:
    backend = open_backend("memory://", layers)
    await backend.start()
    file, _ = await backend.create(b"f", os.O_RDWR, 0o600, Owner(0, 0))
    await file.write(0, bytes(SIZE))
    return backend, file


async def test_throttle_shares_one_link(autojump_clock: trio.testing.MockClock) -> None:
    _, file = await opened({"type": "throttle", "bandwidth_bytes_per_s": SIZE, "latency_s": 0.5})
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(read_file, file, 0, SIZE // 2)
    assert trio.current_time() - begun == pytest.approx(4 * 0.5 + 0.5)


async def test_throttle_counts_operations(autojump_clock: trio.testing.MockClock) -> None:
    backend, _ = await opened({"type": "throttle", "operations_per_s": 10})
    begun = trio.current_time()
    for _ in range(20):
        await backend.stat(b"f")
    assert trio.current_time() - begun == pytest.approx(2.0)


async def test_aging_is_the_disk_of_the_core(autojump_clock: trio.testing.MockClock) -> None:
    _, file = await opened({"type": "aging", "years": 10, "time_scale": 2, "seed": 3})
    disk = Disk(years=10, seed=3)
    disk.service(0, SIZE)  # the write that made the file
    expected = sum(disk.service(offset, 65536) for offset in (0, 500_000, 100))
    begun = trio.current_time()
    for offset in (0, 500_000, 100):
        await read_file(file, offset, 65536)
    assert trio.current_time() - begun == pytest.approx(expected / 1e9 / 2, rel=1e-3)


async def test_aging_serves_one_after_the_other(autojump_clock: trio.testing.MockClock) -> None:
    backend, file = await opened({"type": "aging", "years": 0})
    begun = trio.current_time()
    await read_file(file, 0, 65536)
    alone = trio.current_time() - begun
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(read_file, file, 0, 65536)
    assert trio.current_time() - begun > 5 * alone * 0.3
    assert backend.control("aging", years=10)["years"] == 10
    begun = trio.current_time()
    await read_file(file, 0, 65536)
    assert trio.current_time() - begun > 0.09  # 64 KiB at 0.69 MB/s


async def test_aging_at_any_scale_and_changed_under_way(
    autojump_clock: trio.testing.MockClock,
) -> None:
    for scale in (1e-3, 1.0, 1e6):
        backend, file = await opened({"type": "aging", "years": 4, "time_scale": scale, "seed": 1})
        disk = Disk(years=4, seed=1)
        disk.service(0, SIZE)
        begun = trio.current_time()
        await read_file(file, 0, 65536)
        expected = disk.service(0, 65536) / 1e9 / scale
        assert trio.current_time() - begun == pytest.approx(expected, rel=1e-3, abs=1e-6)
    for scale in (0.5, 20):
        assert backend.control("aging", time_scale=scale)["time_scale"] == scale
        begun = trio.current_time()
        await read_file(file, 0, 65536)
        expected = disk.service(0, 65536) / 1e9 / scale
        assert trio.current_time() - begun == pytest.approx(expected, rel=1e-3)
    assert backend.statistics()["aging_requests"] == 4
    assert backend.statistics()["aging_busy_s"] > 0


async def test_aging_of_metadata_on_request(autojump_clock: trio.testing.MockClock) -> None:
    backend, _ = await opened({"type": "aging", "years": 4})
    begun = trio.current_time()
    await backend.stat(b"f")
    assert trio.current_time() == begun
    backend, _ = await opened({"type": "aging", "years": 4, "metadata": True})
    begun = trio.current_time()
    await backend.stat(b"f")
    assert trio.current_time() > begun


async def test_aging_counts_the_inner_time_once(autojump_clock: trio.testing.MockClock) -> None:
    _, file = await opened({"type": "aging", "years": 0}, {"type": "throttle", "latency_s": 3})
    begun = trio.current_time()
    await read_file(file, 0, 65536)
    assert trio.current_time() - begun == pytest.approx(3)


async def test_fault_hang_ends_with_its_window(autojump_clock: trio.testing.MockClock) -> None:
    window = {"type": "fault", "hang": True, "after_s": 10, "for_s": 5, "operations": "data"}
    _, file = await opened(window)
    begun = trio.current_time()
    await trio.sleep(12)
    await read_file(file, 0, 10)
    assert trio.current_time() - begun == pytest.approx(15)


def test_fault_control_refuses_and_clears() -> None:
    backend = open_backend("memory://", [{"type": "fault", "hang": True, "seed": 7}])
    for bad in ({"clear": "yes"}, {"hang": 1}, {"slow_factor": 0.5}, {"speed": 1}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            backend.control("fault", **bad)
    assert backend.control("fault")["hang"] is True
    assert backend.control("fault", clear=True) == {"seed": 7, "faults_fired": 0}


async def test_retry_leaves_a_truncating_open_alone(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backend, _ = await opened({"type": "retry", "attempts": 4}, {"type": "fault"})
    backend.control("fault", error_probability=1.0)
    for flags, tries in ((os.O_RDONLY, 4), (os.O_RDWR | os.O_TRUNC, 1)):
        before = backend.statistics()["faults_fired"]
        await refused(errno.EIO, backend.open(b"f", flags))
        assert backend.statistics()["faults_fired"] == before + tries
    backend.control("fault", errno="ENOENT")
    before = backend.statistics()["faults_fired"]
    await refused(errno.ENOENT, backend.stat(b"f"))  # not worth another try
    assert backend.statistics()["faults_fired"] == before + 1


async def test_throttle_control(autojump_clock: trio.testing.MockClock) -> None:
    backend, file = await opened({"type": "retry"}, {"type": "throttle", "latency_s": 1})
    state = backend.control("throttle", latency_s=0, bandwidth_bytes_per_s="64KiB")
    assert state["bandwidth_bytes_per_s"] == 65536
    begun = trio.current_time()
    await read_file(file, 0, 65536)
    assert trio.current_time() - begun == pytest.approx(1.0)


async def test_fault_hangs_until_told(autojump_clock: trio.testing.MockClock) -> None:
    backend, file = await opened({"type": "fault"})
    backend.control("fault", hang=True)
    with trio.move_on_after(1000) as scope:
        await read_file(file, 0, 10)
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read_file, file, 0, 10)
        await trio.testing.wait_all_tasks_blocked()
        backend.control("fault", hang=False)
    assert backend.statistics()["faults_fired"] == 2


async def test_fault_by_time_and_kind(autojump_clock: trio.testing.MockClock) -> None:
    backend, file = await opened(
        {
            "type": "fault",
            "error_probability": 1.0,
            "errno": "ESTALE",
            "after_s": 10,
            "for_s": 5,
            "operations": "data",
        }
    )
    await read_file(file, 0, 10)
    await trio.sleep(12)
    await refused(errno.ESTALE, read_file(file, 0, 10))
    await backend.stat(b"f")
    await trio.sleep(5)
    await read_file(file, 0, 10)


async def test_a_slow_factor_slows_the_device_below(
    autojump_clock: trio.testing.MockClock,
) -> None:
    backend, file = await opened({"type": "fault"}, {"type": "aging", "years": 5})
    begun = trio.current_time()
    for _ in range(20):
        await read_file(file, 0, 65536)
    plain = trio.current_time() - begun
    backend.control("fault", slow_factor=6)
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(read_file, file, 0, 65536)
    assert trio.current_time() - begun == pytest.approx(6 * plain, rel=0.3)


async def test_fault_stutters(autojump_clock: trio.testing.MockClock) -> None:
    _, file = await opened({"type": "fault", "stutter_s": 2, "stutter_every_s": 10})
    await trio.sleep(10 - trio.current_time() % 10 + 0.5)
    begun = trio.current_time()
    await read_file(file, 0, 10)
    assert 0 < trio.current_time() - begun <= 2
    begun = trio.current_time()
    await read_file(file, 0, 10)
    assert trio.current_time() == begun


async def test_retry_repeats_reads_only(autojump_clock: trio.testing.MockClock) -> None:
    backend, file = await opened({"type": "retry", "attempts": 5}, {"type": "fault", "seed": 1})
    backend.control("fault", error_probability=0.2)
    for _ in range(40):
        assert len(await read_file(file, 0, 10)) == 10
    assert backend.statistics()["retries"] > 5
    backend.control("fault", error_probability=1.0)
    before = backend.statistics()["faults_fired"]
    with pytest.raises(BackendError):
        await write_file(backend, b"new")
    assert backend.statistics()["faults_fired"] == before + 1
    with pytest.raises(BackendError):
        await backend.stat(b"f")
    assert backend.statistics()["faults_fired"] == before + 6


@pytest.mark.parametrize(
    ("layer", "key"),
    [
        ({"type": "nonsense"}, "layers[0].type"),
        ({}, "layers[0].type"),
        ({"type": "aging", "years": -1}, "years"),
        ({"type": "aging", "years": float("nan")}, "years"),
        ({"type": "aging", "time_scale": 0}, "time_scale"),
        ({"type": "fault", "errno": "ENONSENSE"}, "errno"),
        ({"type": "fault", "slow_factor": True}, "slow_factor"),
        ({"type": "throttle", "bandwidth_bytes_per_s": "fast"}, "bandwidth_bytes_per_s"),
        ({"type": "retry", "attempts": 0}, "attempts"),
        ({"type": "retry", "tries": 3}, "tries"),
    ],
)
def test_bad_parameters_are_named(layer: Params, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_backend("memory://", [layer], key="backend[0].url")
    assert key in str(caught.value)
    assert str(caught.value).startswith("backend[0].layers[0]")


def test_unknown_layer_in_control() -> None:
    with pytest.raises(LookupError):
        open_backend("memory://", [{"type": "retry"}]).control("fault", hang=True)
