"""The demonstration behind ``make demo``: three unequal stores, LRU against Lazy Clock.

Makes a fast local store, one behind a throttled far link and one behind the model of a ten years
old disk, runs the same seeded random reads through a mount of the three under each policy, shows
the partitions move, and fails if the picture is not the expected one. Needs nothing outside of
temporary folders and leaves only ``partitions.png``.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path

from storagecache import compare
from storagecache.errors import StorageCacheError

PAGE_BYTES = 8192
PAGES_PER_STORE = 1024
CACHE_PAGES = 3 * PAGES_PER_STORE // 2  # half of the set
SCRATCH_BYTES = 1 << 20  # what the cache keeps of its budget for gathering replies
WINDOW = 200
TIME_SCALE = 6
READS = 30_000
THREADS = 16
AGED_SHARE_MIN = 0.60
STATIC_RATIO_MIN = 0.85
EPOCHS_MIN = 30
STORES = ("local", "far", "aged")

CONFIG = """\
[cache]
memory_bytes = {memory}
page_bytes = {page}
policy = "lazy-clock"
window = {window}
increment = 0.02
readahead_bytes = 0

[[backend]]
name = "local"
at = "/local"
url = "file://{root}/local"
{local}
[[backend]]
name = "far"
at = "/far"
url = "file://{root}/far"
layers = [{{type = "throttle", bandwidth_bytes_per_s = "20MiB"}}]
{far}
[[backend]]
name = "aged"
at = "/aged"
url = "file://{root}/aged"
layers = [{{type = "aging", years = 10, time_scale = {scale}}}]
{aged}
[mount]
kernel_cache = "off"
"""


def write_config(path: Path, root: Path, shares: dict[str, float] | None = None) -> None:
    lines = dict.fromkeys(STORES, "")
    if shares is not None:
        lines = {name: f"share = {max(share, 1e-3):.6f}\n" for name, share in shares.items()}
    path.write_text(
        CONFIG.format(
            memory=CACHE_PAGES * PAGE_BYTES + SCRATCH_BYTES,
            page=PAGE_BYTES,
            window=WINDOW,
            scale=TIME_SCALE,
            root=root,
            **lines,
        )
    )
    path.chmod(0o600)


def best_shares(service_s: dict[str, float]) -> dict[str, float]:
    """Partition of the cache that makes the most waited-for store's load least.

    Reads are uniform, so a store with a fraction x of its pages cached has the load
    (1 - x) * service; the least common load that the cache can reach is found by bisection.
    """
    capacity = CACHE_PAGES / PAGES_PER_STORE  # in whole stores
    low, high = 0.0, max(service_s.values())
    for _ in range(60):
        load = (low + high) / 2
        needed = sum(max(0.0, 1 - load / service) for service in service_s.values())
        low, high = (load, high) if needed > capacity else (low, load)
    return {name: max(0.0, 1 - high / s) / capacity for name, s in service_s.items()}


def main() -> int:
    started = time.monotonic()
    workload = [
        sys.executable,
        str(Path(__file__).resolve().with_name("random_read.py")),
        "{}",
        f"--reads={READS}",
        f"--block-bytes={PAGE_BYTES}",
        f"--threads={THREADS}",
    ]
    print(
        f"Three stores of {PAGES_PER_STORE} pages of {PAGE_BYTES >> 10} KiB; cache: half of them."
        f" {READS} uniform random reads, {THREADS} at a time, kernel cache off.\n"
        f"The aged store is a ten years old disk, {TIME_SCALE} times faster than real so that this"
        f" ends soon; one epoch of the repartitioner is {WINDOW} misses.",
        flush=True,
    )
    live = compare.Live()
    with tempfile.TemporaryDirectory(prefix="storagecache-demo-") as temporary:
        root = Path(temporary)
        draw = random.Random(7)
        for name in STORES:
            (root / name).mkdir()
            (root / name / "data").write_bytes(draw.randbytes(PAGES_PER_STORE * PAGE_BYTES))
        config = root / "demo.toml"
        write_config(config, root)
        report = root / "report"
        workload.append(f"--report={report}")
        runs = [
            compare.run_policy(str(config), policy, workload, show=live.show)
            for policy in ("lru", "lazy-clock")
        ]
        service = {
            name: part["busy_s"] / max(1, part["misses"])
            for name, part in runs[0].status["backends"].items()
        }
        shares = best_shares(service)
        write_config(config, root, shares)
        static = compare.run_policy(str(config), "static-clock", workload, show=live.show)
        rates = [
            float(json.loads(line)["second_half_reads_per_s"])
            for line in report.read_text().splitlines()
        ]
    print(compare.table([*runs, static]))
    compare.plot(Path("partitions.png"), runs)
    return verdict(runs[1], rates, time.monotonic() - started)


def verdict(lazy: compare.Run, rates: list[float], seconds: float) -> int:
    """Check the picture; `rates`: reads a second of lru, lazy-clock and the best static one.

    Rates are of the second half of the reads, when every cache has been filled and partitioned.
    """
    cache = lazy.status["cache"]
    share = lazy.status["backends"]["aged"]["pages"] / cache["capacity_pages"]
    ratio = rates[1] / rates[2]
    checks = [
        (cache["epochs"] >= EPOCHS_MIN, f"{cache['epochs']} epochs (at least {EPOCHS_MIN})"),
        (
            share >= AGED_SHARE_MIN,
            f"the aged store holds {share:.0%} of the frames (at least {AGED_SHARE_MIN:.0%})",
        ),
        (
            ratio >= STATIC_RATIO_MIN,
            f"lazy-clock reaches {ratio:.2f} of the best static partition's throughput"
            f" in the second half (at least {STATIC_RATIO_MIN})",
        ),
    ]
    for good, text in checks:
        print(f"{'ok  ' if good else 'FAIL'} {text}")
    print(
        f"lazy-clock is {rates[1] / rates[0]:.2f} times as fast as lru there."
        f" Partition sizes over time: partitions.png. {seconds:.0f} s in all."
    )
    return 0 if all(good for good, _ in checks) else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except StorageCacheError as exc:
        print(f"demo: {exc}", file=sys.stderr)
        raise SystemExit(1) from None
