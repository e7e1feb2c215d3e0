"""``retry``: another try for calls that may be repeated."""

from __future__ import annotations

import os
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from storagecache.backend import Backend, BackendWrapper, Operation, Params
from storagecache.errors import BackendError

from .params import Parameters

T = TypeVar("T")

# Repeating any of these has no effect beyond the first success.
_REPEATABLE: Final = frozenset(
    {"stat", "open_directory", "open", "read", "readlink", "statfs", "getxattr", "listxattr"}
)
_BACKOFF_MAX_EXPONENT: Final = 30


class RetryLayer(BackendWrapper):
    """Exponential backoff with full jitter between tries of calls that change nothing.

    An open that truncates is not repeated.

    Parameters: ``attempts`` (in all, 3), ``initial_s`` (0.1), ``max_s`` (5), ``seed``.
    """

    layer_type = "retry"

    def __init__(self, inner: Backend, params: Params) -> None:
        super().__init__(inner)
        taken = Parameters(params)
        self._attempts = taken.whole("attempts", 3, low=1, high=1000)
        self._initial_s = taken.number("initial_s", 0.1, high=3600.0)
        self._max_s = taken.number("max_s", 5.0, high=3600.0)
        self._random = random.Random(taken.whole("seed", 0))
        taken.done()
        self._retries = 0

    @classmethod
    def from_params(cls, inner: Backend, params: Params) -> RetryLayer:
        return cls(inner, params)

    def statistics(self) -> dict[str, float]:
        return {**self.inner.statistics(), "retries": self._retries}

    async def around(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        if operation.name not in _REPEATABLE or operation.flags & os.O_TRUNC:
            return await call()
        for attempt in range(self._attempts - 1):
            try:
                return await call()
            except BackendError as exc:
                if not exc.retryable:
                    raise
                self._retries += 1
                exponent = min(attempt, _BACKOFF_MAX_EXPONENT)
                limit = min(self._max_s, self._initial_s * 2.0**exponent)
                await trio.sleep(self._random.uniform(0.0, limit))
        return await call()
