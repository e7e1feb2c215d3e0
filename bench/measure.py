"""What the benches share: mounts to measure, interleaved rounds, one line per ratio."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from storagecache.compare import fresh_mount
from storagecache.control import ControlClient

ROUNDS = 5
HERE = Path(__file__).resolve().parent


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary directory on the disk of the current one."""
    path = Path(tempfile.mkdtemp(prefix="storagecache-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextlib.contextmanager
def process_mount(arguments: list[str], directory: Path, unmount: list[str]) -> Iterator[None]:
    """A mount made by another program, in a process that is ended afterwards."""
    directory.mkdir(exist_ok=True)
    process = subprocess.Popen(arguments)
    try:
        deadline = time.monotonic() + 20
        while not os.path.ismount(directory):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"bench: {arguments[0]} did not mount")
        yield
    finally:
        subprocess.run([*unmount, str(directory)], check=False)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


def null_mount(directory: Path, *words: str) -> contextlib.AbstractContextManager[None]:
    arguments = [sys.executable, str(HERE / "nullfs.py"), str(directory), *words]
    return process_mount(arguments, directory, ["fusermount3", "-u"])


@contextlib.contextmanager
def our_mount(
    root: Path, store: Path, *, memory: str = "512MiB", kernel_cache: str = "off"
) -> Iterator[tuple[Path, ControlClient]]:
    """`store` at /s of a mount of ours."""
    config = root / "bench.toml"
    config.write_text(
        f'[cache]\nmemory_bytes = "{memory}"\n[[backend]]\nname = "s"\nat = "/s"\n'
        f'url = "file://{store}"\n[mount]\nkernel_cache = "{kernel_cache}"\n'
    )
    config.chmod(0o600)
    with fresh_mount(str(config), []) as (path, client):
        yield path / "s", client


def interleaved(first: Callable[[], float], second: Callable[[], float]) -> tuple[float, float]:
    """Medians of both over alternating rounds."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(first())
        theirs.append(second())
    return statistics.median(ours), statistics.median(theirs)


def report(what: str, ratio: float, bound: float, *, at_least: bool = True) -> bool:
    """Print a ratio with its bound; whether it holds."""
    good = ratio >= bound if at_least else ratio <= bound
    word = "at least" if at_least else "at most"
    print(f"{'ok  ' if good else 'FAIL'} {what}: {ratio:.2f} ({word} {bound})", flush=True)
    return good


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
