"""The policies and partitions once more, as plainly as can be: lists, no cleverness.

Written from the papers and their descriptions, not from the core; slow on purpose.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
Page = tuple[int, int]  # backend, page number


class SplitMix64:
    """The named generator of the lotteries."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def uniform(self) -> float:
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53


class Lru:
    def __init__(self) -> None:
        self.order: list[Page] = []  # next victim first

    def __len__(self) -> int:
        return len(self.order)

    def insert(self, page: Page, cost: int) -> None:
        self.order.append(page)

    def hit(self, page: Page) -> None:
        self.order.remove(page)
        self.order.append(page)

    def evict(self) -> Page:
        return self.order.pop(0)


class Clock:
    """A ring as a list that starts at the hand: just behind the hand is the list's end."""

    def __init__(self) -> None:
        self.ring: list[Page] = []
        self.used: dict[Page, bool] = {}

    def __len__(self) -> int:
        return len(self.ring)

    def insert(self, page: Page, cost: int) -> None:
        self.ring.append(page)
        self.used[page] = False

    def hit(self, page: Page) -> None:
        self.used[page] = True

    def evict(self) -> Page:
        while self.used[self.ring[0]]:
            self.used[self.ring[0]] = False
            self.ring.append(self.ring.pop(0))
        return self.ring.pop(0)


class Landlord:
    """Everybody pays: the least credit is taken from all, as Young's paper says it."""

    def __init__(self) -> None:
        self.order: list[Page] = []  # by recency, oldest first
        self.credit: dict[Page, int] = {}
        self.cost: dict[Page, int] = {}

    def __len__(self) -> int:
        return len(self.order)

    def insert(self, page: Page, cost: int) -> None:
        self.order.append(page)
        self.cost[page] = self.credit[page] = cost

    def hit(self, page: Page) -> None:
        self.order.remove(page)
        self.order.append(page)
        self.credit[page] = self.cost[page]

    def evict(self) -> Page:
        rent = min(self.credit[page] for page in self.order)
        for page in self.order:
            self.credit[page] -= rent
        victim = next(page for page in self.order if self.credit[page] == 0)
        self.order.remove(victim)
        return victim


POLICIES = {"lru": Lru, "clock": Clock, "landlord": Landlord}


class NaiveCache:
    """Any policy in any scheme; one access at a time."""

    def __init__(self, name: str, capacity: int, backends: int, seed: int = 0) -> None:
        scheme, _, policy = name.rpartition("-")
        self.scheme = scheme or "global"
        self.capacity = capacity
        self.backends = backends
        count = 1 if self.scheme == "global" else backends
        self.sets = [POLICIES[policy]() for _ in range(count)]
        self.targets = [capacity // backends + (i < capacity % backends) for i in range(backends)]
        self.resident: set[Page] = set()
        self.random = SplitMix64(seed)

    def held(self, backend: int) -> int:
        return sum(page[0] == backend for page in self.resident)

    def access(self, page: Page, cost: int) -> bool:
        number = 0 if self.scheme == "global" else page[0]
        if page in self.resident:
            self.sets[number].hit(page)
            return True
        victim = self.victim_set(page[0])
        if victim is not None:
            self.resident.discard(self.sets[victim].evict())
        self.sets[number].insert(page, cost)
        self.resident.add(page)
        return False

    def victim_set(self, backend: int) -> int | None:
        full = len(self.resident) == self.capacity
        held = [self.held(i) for i in range(self.backends)]
        if self.scheme in ("static", "eager"):
            return backend if held[backend] >= self.targets[backend] else None
        if not full:
            return None
        if self.scheme == "global":
            return 0
        if self.scheme == "lazy-quota":
            over = [held[i] + (i == backend) - self.targets[i] for i in range(self.backends)]
            holders = [i for i in range(self.backends) if held[i]]
            return max(holders, key=lambda i: (over[i], -i))
        tickets = [(i, 1 / self.targets[i]) for i in range(self.backends) if held[i]]
        total = 0.0
        for _, weight in tickets:
            total += weight
        drawn = self.random.uniform() * total
        for i, weight in tickets:
            drawn -= weight
            if drawn < 0:
                return i
        return tickets[-1][0]
