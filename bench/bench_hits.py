"""Reads that hit, against a null pyfuse3 filesystem beside it: at least 0.7 of its speed.

Kernel cache off on both sides; random 4 KiB reads with O_DIRECT by one and four readers, sequential
reads of 128 KiB and 1 MiB; medians of five interleaved rounds of two seconds.

Last table (2 cores, 2026-11-21):

    random 4 KiB, 1 reader (15581/s): 0.95
    random 4 KiB, 4 readers (29694/s): 0.91
    sequential 128 KiB (2566 MB/s): 0.98
    sequential 1 MiB (3836 MB/s): 1.15
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from measure import HERE, folder, interleaved, null_mount, our_mount, report

SIZE = 256 << 20
SECONDS = 2.0
BOUND = 0.7


def speed(path: Path, kind: str, number: int) -> float:
    words = [str(path), kind, str(number), str(SECONDS), str(SIZE)]
    done = subprocess.run(
        [sys.executable, str(HERE / "readers.py"), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def main() -> int:
    good = True
    with folder() as root:
        store = root / "store"
        store.mkdir()
        draw = random.Random(1)
        (store / "f").write_bytes(b"".join(draw.randbytes(1 << 20) for _ in range(SIZE >> 20)))
        with null_mount(root / "null", "read"), our_mount(root, store) as (ours, client):
            (ours / "f").read_bytes()
            for kind, number, name in (
                ("random", 1, "random 4 KiB, 1 reader"),
                ("random", 4, "random 4 KiB, 4 readers"),
                ("sequential", 128 << 10, "sequential 128 KiB"),
                ("sequential", 1 << 20, "sequential 1 MiB"),
            ):
                before = client.call("status")["backends"]["s"]["misses"]
                mine, null = interleaved(
                    lambda k=kind, n=number: speed(ours / "f", k, n),
                    lambda k=kind, n=number: speed(root / "null/f", k, n),
                )
                missed = client.call("status")["backends"]["s"]["misses"] - before
                if missed:
                    print(f"FAIL {missed} misses: this measured something else")
                    good = False
                unit = f"{mine:.0f}/s" if kind == "random" else f"{mine / 1e6:.0f} MB/s"
                good &= report(f"{name} ({unit})", mine / null, BOUND)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
