"""The live interface against a plain model: fetches, writes, truncation, dooming, budget."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from storagecache._core import Cache, Plan, Run

PAGE = 16384
SIZE_MAX = 200_000
READ_MAX = 40_000


class Pages(RuleBasedStateMachine):
    """Two objects of a backend, changed and read in every order; fetches end late."""

    @initialize(policy=st.sampled_from(["lru", "lazy-clock", "eager-lru", "landlord", "none"]))
    def start(self, policy: str) -> None:
        self.core = Cache(
            policy=policy, memory_bytes=12 * PAGE, page_bytes=PAGE, backends=2, window=7
        )
        self.view = memoryview(self.core.arena)
        self.slots = [self.core.open_object(number) for number in range(2)]
        self.contents = [bytearray(b"a" * 70_000), bytearray(b"b" * 9_000)]
        self.flights: list[tuple[int, Run, bytes]] = []
        self.plans: list[tuple[int, int, int, Plan]] = []
        self.now = 0

    def fetched(self, number: int, runs: list[Run]) -> None:
        """The backend answers with the contents as of now, or later."""
        for run in runs:
            assert run.size <= max(READ_MAX, PAGE)
            assert sum(length for _, length in run.buffers) == run.size
            data = bytes(self.contents[number][run.offset : run.offset + run.size])
            self.flights.append((number, run, data))

    @rule(
        number=st.integers(0, 1),
        offset=st.integers(0, SIZE_MAX),
        size=st.integers(1, 60_000),
        whole=st.booleans(),
    )
    def begin_read(self, number: int, offset: int, size: int, whole: bool) -> None:
        length = len(self.contents[number])
        plan = self.core.begin_read(
            self.slots[number], offset, size, length, READ_MAX, whole_pages=whole
        )
        assert plan.covered <= max(0, min(size, length - offset))
        self.fetched(number, plan.runs)
        if plan.frames:
            self.plans.append((number, offset, plan.covered, plan))

    @rule(number=st.integers(0, 1), offset=st.integers(0, SIZE_MAX), size=st.integers(1, 99_000))
    def prefetch(self, number: int, offset: int, size: int) -> None:
        length = len(self.contents[number])
        slot = self.slots[number]
        self.fetched(number, self.core.begin_prefetch(slot, offset, size, length, READ_MAX))

    @precondition(lambda self: self.flights)
    @rule(which=st.integers(0, 10), fails=st.booleans())
    def end_fetch(self, which: int, fails: bool) -> None:
        number, run, data = self.flights.pop(which % len(self.flights))
        if fails:
            self.core.fail(run)
            return
        left = data
        for start, length in run.buffers:
            part, left = left[:length], left[length:]
            self.view[start : start + len(part)] = part
        self.core.complete(run, len(data), 5)
        self.now += 1
        self.core.observe(number, 10 + number, 5, self.now, demand=True)

    @precondition(lambda self: self.plans)
    @rule(which=st.integers(0, 10))
    def end_read(self, which: int) -> None:
        number, offset, covered, plan = self.plans.pop(which % len(self.plans))
        start = self.core.gather(plan.frames, offset, covered)
        now = bytes(self.contents[number][offset : offset + covered])
        if start >= 0 and len(now) == covered:
            assert bytes(self.view[start : start + covered]) == now
        self.core.unpin(plan.frames)

    @rule(number=st.integers(0, 1), offset=st.integers(0, SIZE_MAX), size=st.integers(0, 50_000))
    def read(self, number: int, offset: int, size: int) -> None:
        size = max(0, min(size, len(self.contents[number]) - offset))
        start = self.core.read(self.slots[number], offset, size)
        if start >= 0:
            expected = bytes(self.contents[number][offset : offset + size])
            assert bytes(self.view[start : start + size]) == expected

    @rule(
        number=st.integers(0, 1),
        offset=st.integers(0, SIZE_MAX),
        size=st.sampled_from([1, 100, 4096, PAGE, 3 * PAGE, 30_000]),
        aligned=st.booleans(),
        fill=st.integers(0, 255),
    )
    def write(self, number: int, offset: int, size: int, aligned: bool, fill: int) -> None:
        offset = offset // PAGE * PAGE if aligned else offset
        contents = self.contents[number]
        if offset > len(contents):
            contents.extend(bytes(offset - len(contents)))
        contents[offset : offset + size] = bytes([fill]) * size
        self.core.write(self.slots[number], offset, bytes([fill]) * size)

    @rule(number=st.integers(0, 1), size=st.integers(0, SIZE_MAX))
    def truncate(self, number: int, size: int) -> None:
        contents = self.contents[number]
        del contents[size:]
        contents.extend(bytes(size - len(contents)))
        self.core.truncate(self.slots[number], size)

    @rule(number=st.integers(0, 1), first=st.integers(0, 8), last=st.integers(0, 8))
    def invalidate(self, number: int, first: int, last: int) -> None:
        self.core.invalidate(self.slots[number], first, last)

    @rule(number=st.integers(0, 1), offset=st.integers(0, SIZE_MAX), size=st.integers(1, 50_000))
    def mark_dirty(self, number: int, offset: int, size: int) -> None:
        self.core.mark_dirty(self.slots[number], offset, size)

    @rule(number=st.integers(0, 1), offset=st.integers(0, SIZE_MAX), size=st.integers(1, 99_000))
    def mark_clean(self, number: int, offset: int, size: int) -> None:
        self.core.mark_clean(self.slots[number], offset, size)

    @rule(number=st.integers(0, 1))
    def reopen(self, number: int) -> None:
        self.core.close_object(self.slots[number])
        self.slots[number] = self.core.open_object(number)

    @rule(policy=st.sampled_from(["lru", "lazy-lru", "static-clock", "none"]))
    def set_policy(self, policy: str) -> None:
        self.core.set_policy(policy)

    @invariant()
    def holds(self) -> None:
        self.core.check_invariants()
        status = self.core.statistics()
        assert status["used_bytes"] <= status["capacity_bytes"]

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _, run, _ in self.flights:
            self.core.fail(run)
        for *_, plan in self.plans:
            self.core.unpin(plan.frames)
        for slot in self.slots:
            self.core.mark_clean(slot, 0, 2 * SIZE_MAX)
        status = self.core.statistics()
        assert status["pinned_pages"] == status["filling_pages"] == status["orphan_pages"] == 0
        self.core.check_invariants()


Pages.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestPages = Pages.TestCase


def fill(core: Cache, slot: int, offset: int, size: int, object_size: int) -> Plan:
    plan = core.begin_read(slot, offset, size, object_size, 1 << 20)
    for run in plan.runs:
        core.complete(run, min(run.size, object_size - run.offset), 1)
    return plan


def test_sequential_fills_are_adjacent_and_served_in_place() -> None:
    core = Cache(policy="lru", memory_bytes=32 << 20, page_bytes=65536, backends=1)
    slot = core.open_object(0)
    plan = fill(core, slot, 0, 1 << 20, 1 << 20)
    assert [len(run.buffers) for run in plan.runs] == [1]
    core.unpin(plan.frames)
    first = core.read(slot, 0, 4096)
    assert core.read(slot, 0, 1 << 20) == first > 0
    assert core.statistics()["partitions"][0]["hits"] == 17


def test_a_full_cache_of_pins_says_so() -> None:
    core = Cache(policy="lru", memory_bytes=9 * 65536, page_bytes=65536, backends=1)
    slot = core.open_object(0)
    held = []
    while True:
        plan = core.begin_read(slot, len(held) * 65536, 65536, 1 << 30, 1 << 20)
        if not plan.covered:
            break
        held.append(plan)
    assert len(held) == core.statistics()["capacity_pages"]
    for plan in held:
        core.unpin(plan.frames)
        for run in plan.runs:
            core.fail(run)
    assert core.begin_read(slot, 0, 10, 1 << 30, 1 << 20).covered == 10


def test_sector_fill_reads_what_is_missing_only() -> None:
    core = Cache(policy="lru", memory_bytes=8 << 20, page_bytes=65536, backends=1)
    slot = core.open_object(0)
    plan = core.begin_read(slot, 9000, 10, 1 << 20, 1 << 20, whole_pages=False)
    (run,) = plan.runs
    assert (run.offset, run.size) == (8192, 4096)
    core.complete(run, run.size, 1)
    core.unpin(plan.frames)
    assert core.read(slot, 9000, 10) > 0
    assert core.read(slot, 9000, 5000) == -1
    plan = core.begin_read(slot, 4096, 20_000, 1 << 20, 1 << 20, whole_pages=False)
    assert [(run.offset, run.size) for run in plan.runs] == [(4096, 4096)]


def test_dirty_pages_are_pinned_until_clean() -> None:
    core = Cache(policy="lru", memory_bytes=9 * 65536, page_bytes=65536, backends=1)
    slot = core.open_object(0)
    core.write(slot, 0, bytes(65536))
    core.mark_dirty(slot, 0, 5000)
    assert core.statistics()["dirty_bytes"] == 8192
    for page in range(1, 100):
        core.write(slot, page * 65536, bytes(65536))
    assert core.read(slot, 0, 65536) >= 0
    core.mark_clean(slot, 0, 65536)
    assert core.statistics()["pinned_pages"] == core.statistics()["dirty_bytes"] == 0
    core.check_invariants()


def test_bad_slots_are_refused() -> None:
    core = Cache(policy="lru", memory_bytes=1 << 20, page_bytes=4096, backends=1)
    with pytest.raises(ValueError, match="slot"):
        core.write(99, 0, b"x")
    with pytest.raises(ValueError, match="backend"):
        core.open_object(1)
    with pytest.raises(ValueError, match="1 MiB"):
        core.read(core.open_object(0), 0, (1 << 20) + 1)


@pytest.mark.parametrize("how", ["truncate", "truncate in page", "close", "write in fill"])
def test_regression_dirty_pages_that_leave_give_their_frame_back(how: str) -> None:
    core = Cache(policy="lru", memory_bytes=8 << 20, page_bytes=65536, backends=1)
    slot = core.open_object(0)
    core.write(slot, 0, bytes(65536))
    core.mark_dirty(slot, 0, 65536)
    if how == "truncate":
        core.truncate(slot, 0)
    elif how == "truncate in page":
        core.mark_clean(slot, 0, 4096)
        core.truncate(slot, 4096)
    elif how == "close":
        core.close_object(slot)
    else:
        core.truncate(slot, 4096)
        plan = core.begin_read(slot, 4096, 4096, 65536, 1 << 20)
        core.write(slot, 8192, bytes(4096))
        assert [core.complete(run, run.size, 1) for run in plan.runs] == [False]
        core.unpin(plan.frames)
    status = core.statistics()
    assert status["pinned_pages"] == status["orphan_pages"] == status["dirty_bytes"] == 0
    core.check_invariants()


def test_regression_pins_are_dropped_once() -> None:
    core = Cache(policy="lru", memory_bytes=8 << 20, page_bytes=65536, backends=1)
    other = Cache(policy="lru", memory_bytes=64 << 20, page_bytes=65536, backends=1)
    slot = core.open_object(0)
    plan = core.begin_read(slot, 0, 65536, 65536, 1 << 20)
    with pytest.raises(ValueError, match=r"^run: of another cache"):
        other.complete(plan.runs[0], 65536, 1)
    assert core.complete(plan.runs[0], 65536, 1)
    with pytest.raises(ValueError, match=r"^run: has ended"):
        core.complete(plan.runs[0], 65536, 1)
    with pytest.raises(ValueError, match=r"^run: has ended"):
        core.fail(plan.runs[0])
    core.unpin(plan.frames)
    with pytest.raises(ValueError, match=r"^frames: not pinned"):
        core.unpin(plan.frames)
    core.check_invariants()
