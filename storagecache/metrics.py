"""Every metric, defined once. All values are read from statistics() when somebody scrapes.

Nothing here runs per request except `Histogram.observe`, a few integer operations.
"""

from __future__ import annotations

import errno as _errno
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from .backend import Backend, BackendWrapper, Operation
from .errors import BackendError
from .types import Statistics

T = TypeVar("T")

# Upper bounds are 2**k ns for these k: from 1 microsecond to 137 seconds.
_FIRST_BIT, _LAST_BIT = 10, 37
STATES = ("cool", "warming", "cooling", "warm")


class Histogram:
    """Durations in buckets that double: bucket k counts durations below 2**k ns."""

    __slots__ = ("counts", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * 65
        self.total_ns = 0

    def observe(self, duration_ns: int) -> None:
        self.counts[duration_ns.bit_length()] += 1
        self.total_ns += duration_ns

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound in seconds, ending with +Inf."""
        rows: list[tuple[str, float]] = []
        seen = sum(self.counts[:_FIRST_BIT])
        for bit in range(_FIRST_BIT, _LAST_BIT + 1):
            seen += self.counts[bit]
            rows.append((repr((1 << bit) / 1e9), seen))
        rows.append(("+Inf", sum(self.counts)))
        return rows

    @property
    def count(self) -> int:
        return sum(self.counts)


class MeteredBackend(BackendWrapper):
    """The outermost layer of every backend: counts and times each of its calls."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.durations: dict[str, Histogram] = {}
        self.errors: dict[tuple[str, str], int] = {}
        self.under_way = 0
        self.bytes: dict[str, int] = {"read": 0, "write": 0}

    async def around(self, operation: Operation, call: Callable[[], Awaitable[T]]) -> T:
        started = perf_counter_ns()
        self.under_way += 1
        try:
            result = await call()
            if operation.kind == "data":
                moved = result if isinstance(result, int) else operation.size
                self.bytes[operation.name] += moved
            return result
        except BackendError as exc:
            key = (operation.name, _errno.errorcode.get(exc.errno, str(exc.errno)))
            self.errors[key] = self.errors.get(key, 0) + 1
            raise
        finally:
            self.under_way -= 1
            histogram = self.durations.get(operation.name)
            if histogram is None:
                histogram = self.durations[operation.name] = Histogram()
            histogram.observe(perf_counter_ns() - started)


@dataclass(slots=True)
class FrontStatistics:
    """What the FUSE front counts."""

    requests: dict[str, Histogram] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)  # unexpected exceptions, by handler

    def histogram(self, op: str) -> Histogram:
        return self.requests.setdefault(op, Histogram())


class Collector:
    """Turns the statistics of a mount into metric families at scrape time."""

    def __init__(
        self,
        names: list[str],
        backends: list[MeteredBackend],
        core: Callable[[], Statistics],
        front: FrontStatistics,
    ) -> None:
        self._names = names
        self._backends = backends
        self._core = core
        self._front = front

    def collect(self) -> Iterator[Metric]:
        core = self._core()
        yield from self._partitions(core)
        yield from self._cache(core)
        yield from self._requests()

    def _partitions(self, core: Statistics) -> Iterable[Metric]:
        label = ["backend"]
        prefix = "storagecache_"
        pages = GaugeMetricFamily(
            prefix + "partition_pages", "Pages the partition holds", labels=label
        )
        target = GaugeMetricFamily(
            prefix + "partition_target_pages", "Pages the partition should hold", labels=label
        )
        state = GaugeMetricFamily(
            prefix + "partition_state",
            "1 for the repartitioner's state of the partition",
            labels=["backend", "state"],
        )
        relative = GaugeMetricFamily(
            prefix + "relative_wait_ratio",
            "Wait of the last epoch over the mean of all backends",
            labels=label,
        )
        hits = CounterMetricFamily(
            prefix + "page_hits", "Page accesses answered from memory", labels=label
        )
        misses = CounterMetricFamily(
            prefix + "page_misses", "Page accesses that needed the backend", labels=label
        )
        evictions = CounterMetricFamily(prefix + "evictions", "Pages evicted", labels=label)
        response = CounterMetricFamily(
            prefix + "backend_response_seconds",
            "Seconds from arrival to completion of demand misses",
            labels=label,
        )
        busy = CounterMetricFamily(
            prefix + "backend_busy_seconds",
            "Seconds of service, read-ahead included",
            labels=label,
        )
        for name, part in zip(self._names, core["partitions"], strict=True):
            pages.add_metric([name], part["pages"])
            target.add_metric([name], part["target_pages"])
            for value in STATES:
                state.add_metric([name, value], float(part["state"] == value))
            relative.add_metric([name], part["relative_wait"])
            hits.add_metric([name], part["hits"])
            misses.add_metric([name], part["misses"])
            evictions.add_metric([name], part["evictions"])
            response.add_metric([name], part["response_ns"] / 1e9)
            busy.add_metric([name], part["busy_ns"] / 1e9)
        return (pages, target, state, relative, hits, misses, evictions, response, busy)

    def _cache(self, core: Statistics) -> Iterable[Metric]:
        prefix = "storagecache_"
        yield CounterMetricFamily(
            prefix + "repartition_epochs", "Epochs of the repartitioner", value=core["epochs"]
        )
        for name, text, value in (
            ("cache_capacity_bytes", "Byte budget of the cache", core["capacity_bytes"]),
            ("cache_used_bytes", "Bytes of the budget in use", core["used_bytes"]),
        ):
            yield GaugeMetricFamily(prefix + name, text, value=value)
        dirty = GaugeMetricFamily(
            prefix + "dirty_bytes", "Bytes not yet in their backend", labels=["backend"]
        )
        age = GaugeMetricFamily(
            prefix + "oldest_dirty_age_seconds", "Age of the oldest dirty byte", labels=["backend"]
        )
        for name in self._names:
            # Every backend is written through: a write has returned only when nothing is dirty.
            dirty.add_metric([name], core["dirty_bytes"])
            age.add_metric([name], 0.0)
        yield dirty
        yield age

    def _requests(self) -> Iterable[Metric]:
        prefix = "storagecache_"
        requests = HistogramMetricFamily(
            prefix + "backend_request_seconds",
            "Duration of calls on the backend",
            labels=["backend", "op"],
        )
        errors = CounterMetricFamily(
            prefix + "backend_errors",
            "Calls on the backend that failed",
            labels=["backend", "op", "errno"],
        )
        moved = CounterMetricFamily(
            prefix + "backend_bytes", "Bytes moved", labels=["backend", "op"]
        )
        under_way = GaugeMetricFamily(
            prefix + "backend_requests_under_way", "Calls under way", labels=["backend"]
        )
        for name, backend in zip(self._names, self._backends, strict=True):
            for op, histogram in list(backend.durations.items()):
                requests.add_metric([name, op], histogram.buckets(), histogram.total_ns / 1e9)
            for (op, code), count in list(backend.errors.items()):
                errors.add_metric([name, op, code], count)
            for op, amount in backend.bytes.items():
                moved.add_metric([name, op], amount)
            under_way.add_metric([name], backend.under_way)
        yield from (requests, errors, moved, under_way)
        front = HistogramMetricFamily(
            prefix + "fuse_request_seconds", "Duration of FUSE requests", labels=["op"]
        )
        for op, histogram in list(self._front.requests.items()):
            front.add_metric([op], histogram.buckets(), histogram.total_ns / 1e9)
        yield front
        failures = CounterMetricFamily(
            prefix + "fuse_failures", "Unexpected exceptions in FUSE handlers", labels=["op"]
        )
        for op, count in list(self._front.failures.items()):
            failures.add_metric([op], count)
        yield failures


class MetricsServer:
    """``/metrics`` on a loopback address, served by a thread of its own."""

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        self._server: WSGIServer
        self._thread: threading.Thread
        self._server, self._thread = start_http_server(port, host, registry)

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
