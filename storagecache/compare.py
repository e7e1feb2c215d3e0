"""``compare``: a user's own workload under each policy, each in a fresh mount of the same stores.

The mount is a process of its own (``storagecache mount --foreground``); this talks to it through
its control socket, as any user could.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .config import load, parse_overrides
from .control import ControlClient
from .errors import ConfigError, ControlError
from .sizes import format_size

_MOUNT_S: Final = 30.0
_POLL_S: Final = 0.05
_LIVE_S: Final = 1.0


@dataclass(slots=True)
class Run:
    """One policy's run: the workload's time and what the mount counted meanwhile."""

    policy: str
    seconds: float
    bytes_read: int
    status: dict[str, Any]
    timeline: list[dict[str, Any]] = field(default_factory=list)

    @property
    def throughput(self) -> float:
        """Bytes a second that the workload got through the mount."""
        return self.bytes_read / self.seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.usage = "storagecache compare CONFIG --policies A,B [options] -- COMMAND [ARGUMENT ...]"
    parser.description = (
        f"{parser.description} COMMAND runs in the mount's directory; {{}} in it becomes that path,"
        " which is also in $STORAGECACHE_MOUNT."
    )
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("--policies", required=True, metavar="A,B", help="e.g. lru,lazy-clock")
    parser.add_argument("--json", action="store_true", help="results as one JSON array")
    parser.add_argument("--timeline", metavar="FILE.csv", help="partition sizes after each epoch")
    parser.add_argument("--plot", metavar="FILE.png", help="partition sizes as a picture")
    parser.add_argument("--quiet", action="store_true", help="no live lines")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def command(options: argparse.Namespace) -> int:
    """Carry out the command."""
    policies = [name for name in options.policies.split(",") if name]
    if not policies:
        raise ConfigError("--policies", "names no policy")
    if not options.workload:
        raise ConfigError("COMMAND", "missing (after --)")
    if shutil.which(options.workload[0]) is None:
        raise ConfigError("COMMAND", f"{options.workload[0]}: not found")
    settings = list(options.set)
    for policy in policies:  # all of them are known to be good before the first one runs
        load(options.config, {**parse_overrides(settings), "cache.policy": policy})
    show: Callable[[str], None] = (lambda _: None) if options.quiet else Live().show
    runs = []
    for policy in policies:
        run = run_policy(options.config, policy, options.workload, settings=settings, show=show)
        runs.append(run)
    if options.json:
        print(json.dumps([as_row(run) for run in runs], indent=2))
    else:
        print(table(runs))
    if options.timeline:
        write_timeline(Path(options.timeline), runs)
    if options.plot:
        plot(Path(options.plot), runs)
    return 0


class Live:
    """Shows one line that changes in place on a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()

    def show(self, line: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns
            sys.stderr.write("\r\x1b[K" + line[: width - 1])
            if not line:
                sys.stderr.write("\r")
        elif line:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()


@contextlib.contextmanager
def fresh_mount(config: str, settings: Sequence[str]) -> Iterator[tuple[Path, ControlClient]]:
    """A mount of `config` in a temporary directory, unmounted and gone afterwards.

    Raises ConfigError with the daemon's last line where it does not come up.
    """
    directory = Path(tempfile.mkdtemp(prefix="storagecache-compare-"))
    arguments = [sys.executable, "-m", "storagecache", "mount", config, str(directory)]
    arguments.append("--foreground")
    for pair in settings:
        arguments += ["--set", pair]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd="/"
        )
        try:
            client = _connect(process, directory, errors)
            with client:
                yield directory, client
        finally:
            _end(process)
            with contextlib.suppress(FileNotFoundError):
                directory.rmdir()


def _connect(process: subprocess.Popen[bytes], directory: Path, errors: Any) -> ControlClient:
    deadline = time.monotonic() + _MOUNT_S
    while time.monotonic() < deadline:
        try:
            ended = process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            ended = None
        if ended is not None:
            errors.seek(0)
            lines = errors.read().decode(errors="replace").strip().splitlines() or ["no message"]
            raise ConfigError("mount", lines[-1].removeprefix("storagecache: "))
        if os.path.ismount(directory):
            return ControlClient(str(directory))
    raise ConfigError("mount", f"not up after {_MOUNT_S:.0f} s")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_MOUNT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_policy(
    config: str,
    policy: str,
    workload: Sequence[str],
    *,
    settings: Sequence[str] = (),
    show: Callable[[str], None] = lambda _: None,
) -> Run:
    """Run `workload` once under `policy`. Raises ControlError if it fails."""
    chosen = [*settings, f"cache.policy={policy}"]
    with fresh_mount(os.path.abspath(config), chosen) as (directory, client):
        arguments = [word.replace("{}", str(directory)) for word in workload]
        environment = {**os.environ, "STORAGECACHE_MOUNT": str(directory)}
        started = time.monotonic()
        process = subprocess.Popen(arguments, cwd=directory, env=environment)
        try:
            while True:
                try:
                    exit_status = process.wait(_LIVE_S)
                    break
                except subprocess.TimeoutExpired:
                    show(live_line(policy, time.monotonic() - started, client.call("status")))
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        seconds = time.monotonic() - started
        show("")
        if exit_status:
            raise ControlError(f"COMMAND failed under {policy}: exit status {exit_status}")
        status = client.call("status")
        timeline = client.call("timeline")
    page_bytes = status["cache"]["page_bytes"]
    accesses = sum(part["hits"] + part["misses"] for part in status["backends"].values())
    return Run(policy, seconds, accesses * page_bytes, status, timeline)


def live_line(policy: str, seconds: float, status: dict[str, Any]) -> str:
    """Partition sizes and waits in one line."""
    capacity = status["cache"]["capacity_pages"]
    parts = [
        f"{name} {100 * part['pages'] / capacity:3.0f}% wait {part['relative_wait']:4.2f}"
        for name, part in status["backends"].items()
    ]
    epochs = status["cache"]["epochs"]
    return f"{policy:<12}{seconds:5.1f} s  epoch {epochs:>3}  " + "  |  ".join(parts)


def as_row(run: Run) -> dict[str, Any]:
    """A run as plain values."""
    return {
        "policy": run.policy,
        "seconds": run.seconds,
        "bytes_read": run.bytes_read,
        "throughput_bytes_per_s": run.throughput,
        "epochs": run.status["cache"]["epochs"],
        "backends": run.status["backends"],
    }


def table(runs: Sequence[Run]) -> str:
    """Throughput, hits and waits per backend, a block a policy."""
    lines = [
        f"{'policy':<16}{'backend':<14}{'MiB/s':>9}{'hit %':>8}{'misses':>9}"
        f"{'wait s':>9}{'busy s':>9}{'pages':>8}{'share %':>9}"
    ]
    for run in runs:
        capacity = run.status["cache"]["capacity_pages"]
        lines.append(
            f"{run.policy:<16}{'all':<14}{run.throughput / (1 << 20):>9.2f}"
            f"{_hit_percent(run.status['backends'].values()):>8}"
            f"{sum(p['misses'] for p in run.status['backends'].values()):>9}"
            f"{'':>9}{'':>9}{capacity:>8}{'':>9}"
        )
        for name, part in run.status["backends"].items():
            lines.append(
                f"{'':<16}{name:<14}{'':>9}{_hit_percent([part]):>8}{part['misses']:>9}"
                f"{part['response_s']:>9.2f}{part['busy_s']:>9.2f}{part['pages']:>8}"
                f"{100 * part['pages'] / capacity:>9.1f}"
            )
    cache = runs[0].status["cache"]
    lines.append(
        f"cache {format_size(cache['capacity_bytes'])} in pages of "
        f"{format_size(cache['page_bytes'])}; MiB/s counts the pages the workload asked for"
    )
    return "\n".join(lines)


def _hit_percent(parts: Any) -> str:
    hits = misses = 0
    for part in parts:
        hits += part["hits"]
        misses += part["misses"]
    return f"{100 * hits / (hits + misses):.1f}" if hits + misses else "-"


def write_timeline(path: Path, runs: Sequence[Run]) -> None:
    """Partition sizes after each epoch of each run, as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["policy", "time_s", "epoch", "backend", "pages", "target_pages", "relative_wait"]
        )
        for run in runs:
            for row in run.timeline:
                for index, name in enumerate(run.status["backends"]):
                    writer.writerow(
                        [
                            run.policy,
                            f"{row['time_s']:.3f}",
                            row["epoch"],
                            name,
                            row["pages"][index],
                            row["target_pages"][index],
                            f"{row['relative_wait'][index]:.4f}",
                        ]
                    )


def plot(path: Path, runs: Sequence[Run]) -> None:
    """Partition sizes over time as a picture, a panel a policy."""
    try:
        from .lab import figures
    except ImportError as exc:
        raise ConfigError("--plot", "needs matplotlib: install the extra 'plot'") from exc
    figures.partitions(
        path,
        [
            (
                run.policy,
                list(run.status["backends"]),
                run.status["cache"]["capacity_pages"],
                [row["time_s"] for row in run.timeline],
                [row["pages"] for row in run.timeline],
            )
            for run in runs
        ],
    )
