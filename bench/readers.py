"""Readers of one file: `random` 4 KiB with O_DIRECT, or `sequential` blocks.

    python readers.py FILE random READERS SECONDS FILE_BYTES
    python readers.py FILE sequential BLOCK_BYTES SECONDS FILE_BYTES

Prints operations a second (random) or bytes a second (sequential). One process per reader.
"""

from __future__ import annotations

import mmap
import os
import random
import sys
import time
from multiprocessing import Process, Queue


def random_reader(path: str, seconds: float, size: int, seed: int, result: Queue[float]) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 4096)
    draw = random.Random(seed)
    offsets = [draw.randrange(size // 4096) * 4096 for _ in range(20_000)]
    count = 0
    begun = time.perf_counter()
    while True:
        for offset in offsets[:1000]:
            os.preadv(descriptor, [buffer], offset)
        count += 1000
        offsets = offsets[1000:] + offsets[:1000]
        elapsed = time.perf_counter() - begun
        if elapsed > seconds:
            break
    result.put(count / elapsed)


def sequential(path: str, block: int, seconds: float, size: int) -> float:
    descriptor = os.open(path, os.O_RDONLY)
    buffer = memoryview(mmap.mmap(-1, block))
    moved, offset = 0, 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        moved += os.preadv(descriptor, [buffer], offset)
        offset = (offset + block) % size
    return moved / (time.perf_counter() - begun)


def main() -> None:
    path, kind, number, seconds, size = sys.argv[1:6]
    if kind == "sequential":
        print(sequential(path, int(number), float(seconds), int(size)))
        return
    result: Queue[float] = Queue()
    readers = [
        Process(target=random_reader, args=(path, float(seconds), int(size), seed, result))
        for seed in range(int(number))
    ]
    for reader in readers:
        reader.start()
    total = sum(result.get() for _ in readers)
    for reader in readers:
        reader.join()
    print(total)


if __name__ == "__main__":
    main()
