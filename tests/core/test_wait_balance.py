"""The repartitioner against the pseudo-code of FAST 2002, section 3.1, in plain floats."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storagecache._core import Cache

PAGE = 4096
BACKENDS = 4
WINDOW = 5
# (memory - an eighth of it as scratch) / page = 700 pages
MEMORY = 800 * PAGE


def apportion(total: int, weights: list[float]) -> list[int]:
    exact = [weight / sum(weights) * total for weight in weights]
    parts = [math.floor(part) for part in exact]
    order = sorted(range(len(parts)), key=lambda i: (-(exact[i] - parts[i]), i))
    for i in order[: total - sum(parts)]:
        parts[i] += 1
    return parts


class NaiveBalance:
    def __init__(self, capacity: int, threshold: float, increment: float, trend: str) -> None:
        self.capacity, self.threshold, self.trend = capacity, threshold, trend
        self.base = max(1.0, increment * capacity)
        self.targets = [capacity // BACKENDS + (i < capacity % BACKENDS) for i in range(BACKENDS)]
        self.waits = [0] * BACKENDS
        self.previous = [0.0] * BACKENDS
        self.state = ["cool"] * BACKENDS
        self.streak = [0] * BACKENDS
        self.relative = [0.0] * BACKENDS

    def end(self) -> None:
        waits, self.waits = self.waits, [0] * BACKENDS
        mean = sum(waits) / BACKENDS
        if mean == 0:
            return
        wants = [0.0] * BACKENDS
        for i, wait in enumerate(waits):
            ratio = wait / mean
            seen = ratio if self.trend == "relative" else float(wait)
            change, before = seen - self.previous[i], self.state[i]
            if ratio <= self.threshold:
                self.state[i] = "cool"
            elif change > 0:
                self.state[i] = "warming"
                self.streak[i] = self.streak[i] + 1 if before == "warming" else 0
                wants[i] = min(self.capacity, self.base * 2 ** self.streak[i])
            elif change < 0:
                self.state[i] = "cooling"
            else:
                self.state[i] = "warm"
                wants[i] = self.base
            self.previous[i], self.relative[i] = seen, ratio
        need = math.floor(sum(wants) + 0.5)
        spare = [max(0.0, 1 - ratio) for ratio in self.relative]
        if need == 0 or sum(spare) == 0:
            return
        least = max(1, self.capacity // 1000)
        asked = apportion(need, spare)
        give = [min(a, max(0, t - least)) for a, t in zip(asked, self.targets, strict=True)]
        if sum(give):
            got = apportion(sum(give), wants)
            self.targets = [t - g + w for t, g, w in zip(self.targets, give, got, strict=True)]


@pytest.mark.parametrize("trend", ["relative", "absolute"])
@pytest.mark.parametrize("wait", ["busy", "response"])
@settings(max_examples=200, deadline=None)
@given(
    threshold=st.sampled_from([1.0, 1.1, 1.8, 3.0]),
    increment=st.sampled_from([0.002, 0.01, 0.05]),
    events=st.lists(
        st.tuples(
            st.integers(0, BACKENDS - 1), st.integers(0, 9), st.integers(0, 9), st.booleans()
        ),
        max_size=120,
    ),
)
def test_equals_the_naive_repartitioner(
    trend: str,
    wait: str,
    threshold: float,
    increment: float,
    events: list[tuple[int, int, int, bool]],
) -> None:
    core = Cache(
        policy="eager-lru", memory_bytes=MEMORY, page_bytes=PAGE, backends=BACKENDS, wait=wait,
        threshold=threshold, increment=increment, trend=trend, window=WINDOW, max_epoch_ns=0,
    )  # fmt: skip
    naive = NaiveBalance(core.statistics()["capacity_pages"], threshold, increment, trend)
    seen = epochs = 0
    for now, (backend, response, busy, demand) in enumerate(events):
        ended = core.observe(backend, response, busy, now, demand=demand)
        if demand:  # read-ahead and flushes are no wait of the applications
            naive.waits[backend] += busy if wait == "busy" else response
            seen += 1
        assert ended == (demand and seen % WINDOW == 0)
        if ended:
            naive.end()
            epochs += 1
        status = core.statistics()
        parts = status["partitions"]
        assert [part["target_pages"] for part in parts] == naive.targets
        assert [part["state"] for part in parts] == naive.state
        assert [part["relative_wait"] for part in parts] == pytest.approx(naive.relative)
        assert sum(naive.targets) == status["capacity_pages"]
        assert status["epochs"] == epochs


def test_an_epoch_also_ends_by_time_with_enough_samples() -> None:
    core = Cache(policy="eager-lru", memory_bytes=MEMORY, page_bytes=PAGE, backends=2,
                 max_epoch_ns=100, min_sample=3)  # fmt: skip
    assert not core.observe(0, 1, 1, 0, demand=True)
    assert not core.observe(0, 1, 1, 500, demand=True)  # too few: carried on
    assert core.observe(0, 1, 1, 501, demand=True)
    assert not core.end_epoch(502)  # nothing was observed since


@pytest.mark.parametrize(
    ("preset", "factor"), [("paper", 5.0), ("scaled", 1.801), ("default", 1.1)]
)
def test_presets(preset: str, factor: float) -> None:
    """One backend just above, then just below the preset's multiple of the mean wait."""
    for ratio, state in [(factor * 1.01, "warming"), (factor * 0.99, "cool")]:
        if ratio >= BACKENDS:
            continue  # out of reach: a relative wait is at most the number of backends
        core = Cache(policy="eager-lru", memory_bytes=MEMORY, page_bytes=PAGE, backends=BACKENDS,
                     preset=preset)  # fmt: skip
        share = round(1_000_000 * ratio / BACKENDS)
        core.observe(0, share, share, 0, demand=True)
        for backend in range(1, BACKENDS):
            rest = (1_000_000 - share) // (BACKENDS - 1)
            core.observe(backend, rest, rest, 0, demand=True)
        assert core.end_epoch(0)
        assert core.statistics()["partitions"][0]["state"] == state


def test_static_and_none_do_not_move_but_still_count() -> None:
    for policy, repartition in [("static-lru", "wait-balance"), ("lazy-lru", "none")]:
        core = Cache(policy=policy, memory_bytes=MEMORY, page_bytes=PAGE, backends=2,
                     repartition=repartition, window=1)  # fmt: skip
        before = [part["target_pages"] for part in core.statistics()["partitions"]]
        assert core.observe(1, 9, 9, 0, demand=True)
        status = core.statistics()
        assert [part["target_pages"] for part in status["partitions"]] == before
        assert status["epochs"] == 1
        assert status["partitions"][1]["relative_wait"] == 2.0
