"""A seeded closed-loop workload: random reads, uniform over all blocks of all files of a tree.

python random_read.py DIR --reads 40000 --block-bytes 8192 --threads 8 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import threading
import time
from pathlib import Path


def blocks_of(directory: Path, block_bytes: int) -> list[tuple[Path, int]]:
    """(file, offset) of every whole block below `directory`, in a stable order."""
    found: list[tuple[Path, int]] = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            blocks = path.stat().st_size // block_bytes
            found.extend((path, index * block_bytes) for index in range(blocks))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--reads", type=int, default=40_000)
    parser.add_argument("--block-bytes", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--report", type=Path, help="append a line of JSON: reads a second in the second half"
    )
    options = parser.parse_args()

    blocks = blocks_of(options.directory, options.block_bytes)
    if not blocks:
        parser.error(f"{options.directory}: no file of {options.block_bytes} bytes or more")
    files = {path: os.open(path, os.O_RDONLY) for path, _ in blocks}
    draw = random.Random(options.seed)
    order = enumerate([draw.randrange(len(blocks)) for _ in range(options.reads)])
    half = options.reads // 2
    begun = [time.monotonic()] * 2  # of all reads, of the second half
    lock = threading.Lock()
    short: list[str] = []

    def work() -> None:
        while True:
            with lock:
                number, index = next(order, (0, None))
                if number == half:
                    begun[1] = time.monotonic()
            if index is None:
                return
            path, offset = blocks[index]
            if len(os.pread(files[path], options.block_bytes, offset)) != options.block_bytes:
                short.append(f"{path}: short read at {offset}")
                return

    threads = [threading.Thread(target=work) for _ in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begun[1]
    if options.report is not None:
        with options.report.open("a") as file:
            rate = (options.reads - half) / seconds
            file.write(json.dumps({"second_half_reads_per_s": rate}) + "\n")
    for descriptor in files.values():
        os.close(descriptor)
    for line in short:
        print(line)
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
