"""Every backend, bare and inside every layer, passes the conformance suite."""

from __future__ import annotations

from pathlib import Path

from storagecache.backend import Backend, Params, open_backend
from storagecache.testing import BackendSuite

_SCALE: dict[str, Params] = {"aging": {"time_scale": 1000}}


def local(tmp_path: Path, *layers: Params) -> Backend:
    root = tmp_path / "root"
    root.mkdir()
    return open_backend(f"file://{root}", layers)


class TestLocal(BackendSuite):
    def make(self, tmp_path: Path) -> Backend:
        return local(tmp_path)


class TestMemory(BackendSuite):
    def make(self, tmp_path: Path) -> Backend:
        return open_backend("memory://")


class TestThrottledLocal(BackendSuite):
    def make(self, tmp_path: Path) -> Backend:
        return local(tmp_path, {"type": "throttle", "bandwidth_bytes_per_s": "1GiB"})


class TestAgedMemory(BackendSuite):
    def make(self, tmp_path: Path) -> Backend:
        return open_backend("memory://", [{"type": "aging", "years": 2, "time_scale": 1000}])


class TestFaultyMemory(BackendSuite):
    """A fault layer that is there but quiet."""

    def make(self, tmp_path: Path) -> Backend:
        return open_backend("memory://", [{"type": "fault", "after_s": 1000, "hang": True}])


class TestSlowMemory(BackendSuite):
    def make(self, tmp_path: Path) -> Backend:
        return open_backend("memory://", [{"type": "fault", "slow_factor": 2.0}])


class TestRetriedLocal(BackendSuite):
    def make(self, tmp_path: Path) -> Backend:
        return local(tmp_path, {"type": "retry", "attempts": 3})


class TestEverythingAroundMemory(BackendSuite):
    def make(self, tmp_path: Path) -> Backend:
        kinds = ("retry", "fault", "throttle", "aging")
        return open_backend("memory://", [{"type": kind, **_SCALE.get(kind, {})} for kind in kinds])
