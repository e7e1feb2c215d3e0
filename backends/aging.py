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


class AgingLayer(BackendWrapper):
    """Reads and writes take as long as on a one-arm FIFO disk of that age (FAST'02, Table 2).

    Parameters: ``years`` (any age), ``time_scale`` (20: twenty times faster than the model),
    ``seed``, ``seek`` ("average" or "distance"). Objects are laid out by first access, in extents.
    The backend's own time counts too: a call ends when both are over.
    """

    layer_type = "aging"

    def __init__(self, inner: Backend, params: Params) -> None:
        super().__init__(inner)
        taken = Parameters(params)
        years = taken.number("years", 0.0, high=100.0)
        self._time_scale = taken.number("time_scale", 1.0, low=1e-3, high=1e6)
        seed = taken.whole("seed", 0)
        seek = taken.choice("seek", "average", ("average", "distance"))
        taken.done()
        self._disk = Disk(years=years, seed=seed, seek=seek)
        self._extents: dict[tuple[int, int], int] = {}
        self._busy_ns = 0
        self._requests = 0

    @classmethod
    def from_params(cls, inner: Backend, params: Params) -> AgingLayer:
        return cls(inner, params)

    def control(self, layer: str, **arguments: Any) -> dict[str, Any]:
        if layer != self.layer_type:
            return super().control(layer, **arguments)
        taken = Parameters(arguments)
        years = taken.number("years", self._disk.years, high=100.0)
        taken.done()
        self._disk.years = years
        return {"years": self._disk.years, "time_scale": self._time_scale}

    def statistics(self) -> dict[str, float]:
        return {
            **self.inner.statistics(),
            "aging_busy_s": self._busy_ns / 1e9 / self._time_scale,
            "aging_requests": self._requests,
            "aging_years": self._disk.years,
        }

    def _address(self, operation: Operation) -> int:
        extent = operation.offset // _EXTENT_BYTES
        key = (operation.object_id, extent)
        base = self._extents.setdefault(key, len(self._extents) * _EXTENT_BYTES)
        return base + operation.offset % _EXTENT_BYTES

    async def around(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        if operation.kind != "data":
            return await call()
        now = trio.current_time()
        now_ns = int(now * self._time_scale * 1e9)
        start_ns, end_ns = self._disk.submit(now_ns, self._address(operation), operation.size)
        self._busy_ns += end_ns - start_ns
        self._requests += 1
        result = await call()
        await trio.sleep_until(now + (end_ns - now_ns) / 1e9 / self._time_scale)
        return result
