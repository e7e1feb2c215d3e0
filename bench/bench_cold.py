"""Sequential cold read of a local store through the mount: at least 0.5 of the folder's own speed.

Caches are dropped before each round; 1 MiB reads of 1 GiB; medians of five interleaved rounds.

Last table (2 cores, 2026-11-21; the disk itself varied between 1.1 and 3.4 GB/s):

    cold sequential (1222 of 1712 MB/s): 0.71
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from measure import drop_caches, folder, interleaved, our_mount, report

SIZE = 1 << 30
BLOCK = 1 << 20


def speed(path: Path, forget: Path) -> float:
    drop_caches()
    os.utime(forget)  # a new fingerprint: the mount's own pages are dropped at open
    buffer = bytearray(BLOCK)
    begun = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return SIZE / (time.perf_counter() - begun)


def main() -> int:
    with folder() as root:
        store = root / "store"
        store.mkdir()
        with (store / "f").open("wb") as file:
            for seed in range(64):
                file.write(random.Random(seed).randbytes(SIZE // 64))
        with our_mount(root, store, memory="256MiB", kernel_cache="auto") as (ours, _):
            mine, direct = interleaved(
                lambda: speed(ours / "f", store / "f"), lambda: speed(store / "f", store / "f")
            )
        name = f"cold sequential ({mine / 1e6:.0f} of {direct / 1e6:.0f} MB/s)"
        return 0 if report(name, mine / direct, 0.5) else 1


if __name__ == "__main__":
    raise SystemExit(main())
