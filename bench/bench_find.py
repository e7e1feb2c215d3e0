"""`find` over 20 000 files of a local store, cold and warm.

Not slower than `rclone mount` of the same folder beside it, and within 4 times of a null pyfuse3
readdirplus of as many names; cold means a fresh mount.

Last table (2 cores, 2026-11-21):

    find cold (436 ms): 0.26 of rclone, 1.43 of null
    find warm (198 ms): 0.12 of rclone, 0.84 of null
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import time
from pathlib import Path

from measure import ROUNDS, drop_caches, folder, null_mount, our_mount, process_mount, report

FILES = 20_000


def find(path: Path) -> float:
    begun = time.perf_counter()
    done = subprocess.run(
        ["find", str(path), "-type", "f", "-size", "-1"], capture_output=True, check=True
    )
    elapsed = time.perf_counter() - begun
    found = done.stdout.count(b"\n")
    if found not in (0, FILES):
        raise SystemExit(f"bench: {found} files")
    return elapsed


def rclone_mount(root: Path, store: Path) -> contextlib.AbstractContextManager[None]:
    directory = root / "rclone"
    words = ["rclone", "mount", str(store), str(directory), "--config", "", "--log-level", "ERROR"]
    return process_mount(words, directory, ["fusermount3", "-u"])


def main() -> int:
    times: dict[str, list[float]] = {}
    with folder() as root:
        store = root / "store"
        (store / "d").mkdir(parents=True)
        for number in range(FILES):
            (store / f"d/n{number:05}").touch()
        for _ in range(ROUNDS):
            drop_caches()
            with null_mount(root / "null", "list", str(FILES)):
                times.setdefault("null cold", []).append(find(root / "null/d"))
                times.setdefault("null warm", []).append(find(root / "null/d"))
            drop_caches()
            with our_mount(root, store, kernel_cache="auto") as (ours, _):
                times.setdefault("cold", []).append(find(ours / "d"))
                times.setdefault("warm", []).append(find(ours / "d"))
            drop_caches()
            with rclone_mount(root, store):
                times.setdefault("rclone cold", []).append(find(root / "rclone/d"))
                times.setdefault("rclone warm", []).append(find(root / "rclone/d"))
    medians = {name: statistics.median(values) for name, values in times.items()}
    good = True
    for state in ("cold", "warm"):
        mine = medians[state]
        name = f"find {state} ({mine * 1000:.0f} ms)"
        good &= report(f"{name} over rclone", mine / medians[f"rclone {state}"], 1, at_least=False)
        good &= report(f"{name} over null", mine / medians[f"null {state}"], 4, at_least=False)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
