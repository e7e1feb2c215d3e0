"""``fault``: a backend that is slow, stutters, fails or hangs, by time or on command."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from storagecache.backend import Backend, BackendWrapper, Operation, Params
from storagecache.errors import BackendError

from .params import Parameters

T = TypeVar("T")


class FaultLayer(BackendWrapper):
    """Injects faults into the calls on the inner backend.

    Parameters: ``slow_factor`` (1: none; data calls then run one after the other, as on a device
    that is slower by that factor), ``stutter_s`` every ``stutter_every_s`` seconds, ``errno`` with
    ``error_probability``, ``hang``; ``after_s`` and ``for_s`` bound all of them in time since the
    start (``for_s`` 0: for ever); ``operations`` ("all", "data", "metadata"), ``seed``. All but the
    seed change at run time; ``clear=true`` ends every fault. Who hangs goes on with ``hang=false``
    or at the end of the window.
    """

    layer_type = "fault"

    def __init__(self, inner: Backend, params: Params) -> None:
        super().__init__(inner)
        self._params: dict[str, Any] = {}
        self._began = 0.0
        self._resume = trio.Event()
        self._device_free = 0.0  # end of the last data call as slowed down
        self._inner_free = 0.0  # end of the last data call of the inner backend
        self._fired = 0
        self._set(params)
        self._random = random.Random(self._seed)

    @classmethod
    def from_params(cls, inner: Backend, params: Params) -> FaultLayer:
        return cls(inner, params)

    def _set(self, params: Params) -> None:
        taken = Parameters(params)
        slow_factor = taken.number("slow_factor", 1.0, low=1.0, high=1e6)
        stutter_s = taken.number("stutter_s", 0.0, high=86400.0)
        stutter_every_s = taken.number("stutter_every_s", 0.0, high=86400.0)
        probability = taken.number("error_probability", 0.0, high=1.0)
        code = taken.errno("errno", "EIO")
        hang = taken.flag("hang", False)
        after_s = taken.number("after_s", 0.0)
        for_s = taken.number("for_s", 0.0)
        operations = taken.choice("operations", "all", ("all", "data", "metadata"))
        seed = taken.whole("seed", 0)
        taken.done()
        if stutter_s and stutter_every_s <= stutter_s:
            raise ValueError("stutter_every_s: must be longer than stutter_s")
        self._slow_factor, self._probability, self._errno = slow_factor, probability, code
        self._stutter_s, self._stutter_every_s = stutter_s, stutter_every_s
        self._hang, self._after_s, self._for_s = hang, after_s, for_s
        self._operations, self._seed = operations, seed
        self._params = dict(params)
        if not hang:
            self._resume.set()
            self._resume = trio.Event()

    async def start(self) -> None:
        await super().start()
        self._began = trio.current_time()

    def control(self, layer: str, **arguments: Any) -> dict[str, Any]:
        if layer != self.layer_type:
            return super().control(layer, **arguments)
        clear = arguments.pop("clear", False)
        if not isinstance(clear, bool):
            raise ValueError(f"clear: {clear!r} is not true or false")
        base = {"seed": self._seed} if clear else self._params
        self._set({**base, **arguments})
        return {**self._params, "faults_fired": self._fired}

    def statistics(self) -> dict[str, float]:
        return {**self.inner.statistics(), "faults_fired": self._fired}

    def _active(self, operation: Operation) -> bool:
        if self._operations not in ("all", operation.kind):
            return False
        since = trio.current_time() - self._began - self._after_s
        return since >= 0 and (self._for_s == 0 or since < self._for_s)

    async def around(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        if not self._active(operation):
            return await call()
        if self._hang:
            self._fired += 1
            end = self._began + self._after_s + self._for_s if self._for_s else math.inf
            with trio.move_on_at(end):
                await self._resume.wait()
            if not self._active(operation):  # the window is over
                return await call()
        if self._stutter_s:
            phase = (trio.current_time() - self._began) % self._stutter_every_s
            if phase < self._stutter_s:
                self._fired += 1
                await trio.sleep(self._stutter_s - phase)
        if self._probability and self._random.random() < self._probability:
            self._fired += 1
            await trio.lowlevel.checkpoint()
            raise BackendError(self._errno, f"injected: {os.strerror(self._errno)}")
        if self._slow_factor == 1.0:
            return await call()
        self._fired += 1
        return await self._slowly(operation, call)

    async def _slowly(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        """The inner call's own service time, times the factor, one call after the other."""
        arrived = trio.current_time()
        result = await call()
        ended = trio.current_time()
        begin = max(arrived, self._inner_free) if operation.kind == "data" else arrived
        service = max(0.0, ended - begin)
        if operation.kind == "data":
            self._inner_free = max(self._inner_free, ended)
            self._device_free = max(self._device_free, arrived) + service * self._slow_factor
            await trio.sleep_until(self._device_free)
        else:
            await trio.sleep(service * (self._slow_factor - 1.0))
        return result
