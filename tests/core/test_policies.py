"""Every policy in every scheme equals its naive model, access for access."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storagecache import _core
from storagecache._core import Cache

from .naive import NaiveCache

NAMES = [name for name in _core.POLICIES if name != "none"]
TRACES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 14)), max_size=150)


def cache(policy: str, frames: int, **parameters: object) -> Cache:
    """A cache of exactly `frames` pages of 4 KiB."""
    for scratch in range(1, frames + 2):
        made = Cache(
            policy=policy,
            memory_bytes=(frames + scratch) * 4096,
            page_bytes=4096,
            backends=3,
            **parameters,  # type: ignore[arg-type]
        )
        if made.statistics()["capacity_pages"] == frames:
            return made
    raise AssertionError(f"no budget gives {frames} frames")


def test_names() -> None:
    assert {
        "none",
        "lru",
        "clock",
        "landlord",
        "static-lru",
        "eager-lru",
        "lazy-lru",
        "lazy-clock",
        "lazy-quota-lru",
    } <= set(_core.POLICIES)


def test_the_core_is_a_release_build() -> None:
    assert _core.RELEASE_BUILD


@pytest.mark.parametrize("name", NAMES)
def test_equals_the_naive_model(name: str) -> None:
    @settings(max_examples=200, deadline=None)
    @given(
        frames=st.integers(3, 12),
        trace=TRACES,
        seed=st.integers(0, 2**64 - 1),
        costs=st.tuples(*[st.integers(1, 9)] * 3),
    )
    def check(
        frames: int, trace: list[tuple[int, int]], seed: int, costs: tuple[int, int, int]
    ) -> None:
        core = cache(name, frames, seed=seed)
        naive = NaiveCache(name, frames, 3, seed)
        slots = [core.open_object(backend) for backend in range(3)]
        for backend, page in trace:
            hit = core.access(slots[backend], page, costs[backend])
            assert hit == naive.access((backend, page), costs[backend])
            core.check_invariants()
            found = {(slots.index(slot), number) for slot, number in core.resident_pages()}
            assert found == naive.resident

    check()


@settings(max_examples=100, deadline=None)
@given(trace=TRACES, cost=st.integers(1, 10**9))
def test_landlord_with_equal_costs_is_lru(trace: list[tuple[int, int]], cost: int) -> None:
    lru, landlord = cache("lru", 7), cache("landlord", 7)
    slots = [(lru.open_object(b), landlord.open_object(b)) for b in range(3)]
    for backend, page in trace:
        first, second = slots[backend]
        assert lru.access(first, page) == landlord.access(second, page, cost)
    assert sorted(lru.resident_pages()) == sorted(landlord.resident_pages())


def test_none_keeps_nothing() -> None:
    core = cache("none", 5)
    slot = core.open_object(0)
    assert [core.access(slot, 1) for _ in range(4)] == [False] * 4
    assert core.resident_pages() == []


def test_static_targets_follow_shares_or_costs() -> None:
    def targets(**parameters: object) -> list[int]:
        parts = cache("static-lru", 100, **parameters).statistics()["partitions"]
        return [part["target_pages"] for part in parts]

    assert targets() == [34, 33, 33]
    assert targets(shares=[1, 1, 2]) == [25, 25, 50]
    assert targets(service_ns=[1000, 3000, 6000]) == [11, 30, 59]


def test_set_policy_keeps_the_pages_in_order() -> None:
    core = cache("lru", 4)
    slot = core.open_object(0)
    for page in (1, 2, 3, 4, 1):
        core.access(slot, page)
    core.set_policy("lazy-quota-lru")
    core.check_invariants()
    core.access(slot, 5)
    assert sorted(page for _, page in core.resident_pages()) == [1, 3, 4, 5]
    core.set_policy("none")
    assert core.resident_pages() == []


def test_resize_and_targets() -> None:
    core = cache("lazy-clock", 90)
    slots = [core.open_object(b) for b in range(3)]
    for page in range(60):
        for slot in slots:
            core.access(slot, page)
    core.set_targets([10, 20, 60])
    before = core.statistics()["capacity_bytes"]
    core.resize(before // 2)
    core.check_invariants()
    status = core.statistics()
    assert status["used_bytes"] <= before // 2
    assert sum(part["target_pages"] for part in status["partitions"]) == status["capacity_pages"]
    core.resize(before * 4)
    core.check_invariants()
    with pytest.raises(ValueError, match="memory_bytes"):
        core.resize(1 << 50)
    with pytest.raises(ValueError, match="targets"):
        core.set_targets([1, 2, 3])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("policy", "lazy-lruu"),
        ("policy", "-lru"),
        ("page_bytes", 5000),
        ("page_bytes", 8 << 20),
        ("memory_bytes", 4096),
        ("repartition", "curve"),
        ("preset", "big"),
        ("wait", "long"),
        ("threshold", float("nan")),
        ("threshold", 0.5),
        ("window", 0),
        ("increment", 0.0),
        ("tickets", "many"),
        ("trend", "up"),
        ("shares", [1.0, float("inf"), 1.0]),
        ("shares", [1.0]),
    ],
)
def test_bad_parameters_are_named(key: str, value: object) -> None:
    parameters: dict[str, object] = {
        "policy": "lru",
        "memory_bytes": 1 << 20,
        "page_bytes": 4096,
        "backends": 3,
    }
    with pytest.raises(ValueError, match=f"^{key}:"):
        Cache(**{**parameters, key: value})  # type: ignore[arg-type]
