"""``aging``: the model of an old disk in front of a backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from storagecache._core import Disk
from storagecache.backend import Backend, BackendWrapper, Operation, Params

from .params import Parameters

T = TypeVar("T")
_EXTENT_BYTES = 64 << 20
_METADATA_BYTES = 4096
_SCALE_MIN, _SCALE_MAX = 1e-3, 1e6


class AgingLayer(BackendWrapper):
    """Reads and writes take as long as on a one-arm FIFO disk of that age (FAST'02, Table 2).

    Parameters: ``years`` (any age), ``time_scale`` (20: twenty times faster than the model),
    ``seed``, ``seek`` ("average" or "distance"), ``metadata`` (true: calls on names cost the arm a
    block of their directory, too). ``years`` and ``time_scale`` change at run time. Objects are
    laid out by first access, in extents. The backend's own time counts too: a call ends when both
    are over.
    """

    layer_type = "aging"

    def __init__(self, inner: Backend, params: Params) -> None:
        super().__init__(inner)
        taken = Parameters(params)
        years = taken.number("years", 0.0, high=100.0)
        self._time_scale = taken.number("time_scale", 1.0, low=_SCALE_MIN, high=_SCALE_MAX)
        self._metadata = taken.flag("metadata", False)
        seed = taken.whole("seed", 0)
        seek = taken.choice("seek", "average", ("average", "distance"))
        taken.done()
        self._disk = Disk(years=years, seed=seed, seek=seek)
        self._extents: dict[tuple[int | bytes, int], int] = {}
        self._since: float | None = None  # trio's clock when the disk's showed _since_ns
        self._since_ns = 0
        self._busy_s = 0.0
        self._requests = 0

    @classmethod
    def from_params(cls, inner: Backend, params: Params) -> AgingLayer:
        return cls(inner, params)

    def control(self, layer: str, **arguments: Any) -> dict[str, Any]:
        if layer != self.layer_type:
            return super().control(layer, **arguments)
        taken = Parameters(arguments)
        years = taken.number("years", self._disk.years, high=100.0)
        scale = taken.number("time_scale", self._time_scale, low=_SCALE_MIN, high=_SCALE_MAX)
        taken.done()
        self._disk.years = years
        if scale != self._time_scale:
            self._disk_now()  # what has passed went by the old scale
            self._time_scale = scale
        return {"years": self._disk.years, "time_scale": self._time_scale}

    def statistics(self) -> dict[str, float]:
        return {
            **self.inner.statistics(),
            "aging_busy_s": self._busy_s,
            "aging_requests": self._requests,
            "aging_years": self._disk.years,
        }

    def _disk_now(self) -> int:
        """The disk's clock: starts at 0 with the first request, runs `time_scale` times as fast."""
        now = trio.current_time()
        if self._since is not None:
            self._since_ns += round((now - self._since) * self._time_scale * 1e9)
        self._since = now
        return self._since_ns

    def _place(self, operation: Operation) -> tuple[int, int]:
        """Address and size on the disk."""
        owner: int | bytes = operation.object_id
        offset, size = operation.offset, operation.size
        if operation.kind != "data":
            owner, offset, size = operation.path.rpartition(b"/")[0], 0, _METADATA_BYTES
        key = (owner, offset // _EXTENT_BYTES)
        base = self._extents.setdefault(key, len(self._extents) * _EXTENT_BYTES)
        return base + offset % _EXTENT_BYTES, size

    async def around(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        if operation.kind != "data" and not self._metadata:
            return await call()
        arrived = trio.current_time()
        now_ns = self._disk_now()
        start_ns, end_ns = self._disk.submit(now_ns, *self._place(operation))
        self._busy_s += (end_ns - start_ns) / 1e9 / self._time_scale
        self._requests += 1
        due = arrived + (end_ns - now_ns) / 1e9 / self._time_scale
        result = await call()
        await trio.sleep_until(due)
        return result
