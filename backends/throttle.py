"""``throttle``: a far or narrow link in front of a backend."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from storagecache.backend import Backend, BackendWrapper, Operation, Params

from .params import Parameters

T = TypeVar("T")
_GRANULARITY_S = 0.001  # the event loop sleeps in whole milliseconds


class ThrottleLayer(BackendWrapper):
    """Latency on every call, operations a second, bytes a second over one shared link (FIFO).

    Parameters: ``latency_s``, ``operations_per_s``, ``bandwidth_bytes_per_s``; 0 is no limit.
    """

    layer_type = "throttle"

    def __init__(self, inner: Backend, params: Params) -> None:
        super().__init__(inner)
        self._params: dict[str, Any] = {}
        self._link_free = 0.0
        self._turn_free = 0.0
        self._set(params)

    @classmethod
    def from_params(cls, inner: Backend, params: Params) -> ThrottleLayer:
        return cls(inner, params)

    def _set(self, params: Params) -> None:
        taken = Parameters(params)
        latency_s = taken.number("latency_s", 0.0, high=3600.0)
        operations_per_s = taken.number("operations_per_s", 0.0)
        bandwidth = taken.size("bandwidth_bytes_per_s", 0)
        taken.done()
        self._latency_s, self._operations_per_s = latency_s, operations_per_s
        self._bandwidth = bandwidth
        self._params = dict(params)

    def control(self, layer: str, **arguments: Any) -> dict[str, Any]:
        if layer != self.layer_type:
            return super().control(layer, **arguments)
        self._set({**self._params, **arguments})
        return {
            "latency_s": self._latency_s,
            "operations_per_s": self._operations_per_s,
            "bandwidth_bytes_per_s": self._bandwidth,
        }

    async def around(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        now = trio.current_time()
        ready = now
        if self._operations_per_s:
            self._turn_free = max(now, self._turn_free) + 1.0 / self._operations_per_s
            ready = self._turn_free
        if self._bandwidth and operation.size:
            self._link_free = max(now, self._link_free) + operation.size / self._bandwidth
            ready = max(ready, self._link_free)
        if ready - now < _GRANULARITY_S:
            ready = now  # what the link is behind stays on its account
        ready += self._latency_s
        if ready > now:
            await trio.sleep_until(ready)
        return await call()
