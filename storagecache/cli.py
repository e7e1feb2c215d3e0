"""The commands: arguments in, one clear line out on bad input (exit 2), no traceback."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from . import __version__, compare, daemon
from .config import check_mount, load, parse_overrides
from .control import call
from .errors import ConfigError, ControlError, StorageCacheError
from .mount import check_stores
from .sizes import format_size, parse_size

_EXIT_FAILED: Final = 1
_EXIT_BAD_INPUT: Final = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    workload: list[str] = []
    if "--" in words and words[0] == "compare":
        cut = words.index("--")
        words, workload = words[:cut], words[cut + 1 :]
    options = _parser().parse_args(words)
    options.workload = workload
    logging.basicConfig(
        level=logging.DEBUG if options.verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ConfigError as exc:
        print(f"storagecache: {exc}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    except StorageCacheError as exc:
        print(f"storagecache: {exc}", file=sys.stderr)
        return _EXIT_FAILED
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="storagecache",
        description="Unequal stores mounted as one tree, through a storage-aware cache.",
    )
    parser.add_argument("--version", action="version", version=f"storagecache {__version__}")
    parser.add_argument("--verbose", action="store_true", help="log more, to standard error")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, example: str
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            epilog=f"example: {example}",
        )
        command.set_defaults(run=run)
        return command

    mount = add(
        "mount", _mount, "mount the stores of CONFIG at DIR", "storagecache mount my.toml /mnt/all"
    )
    mount.add_argument("config", metavar="CONFIG")
    mount.add_argument("directory", metavar="DIR")
    mount.add_argument("--foreground", action="store_true", help="stay in the foreground")
    mount.add_argument(
        "--log-file", metavar="FILE", help="where the daemon logs (default: nowhere)"
    )
    _add_set(mount)

    umount = add("umount", _umount, "drain and unmount DIR", "storagecache umount /mnt/all")
    umount.add_argument("directory", metavar="DIR")
    umount.add_argument("--timeout", type=float, default=60.0, metavar="S", help="default 60")

    status = add(
        "status", _status, "show what the mount at DIR does", "storagecache status /mnt/all --json"
    )
    status.add_argument("directory", metavar="DIR")
    status.add_argument("--json", action="store_true", help="one JSON object")

    check = add(
        "check", _check, "check CONFIG without mounting", "storagecache check my.toml /mnt/all"
    )
    check.add_argument("config", metavar="CONFIG")
    check.add_argument("directory", metavar="DIR", nargs="?")
    _add_set(check)

    control = add(
        "ctl",
        _ctl,
        "change a running mount",
        "storagecache ctl /mnt/all fault archive slow_factor=6",
    )
    control.add_argument("directory", metavar="DIR")
    _add_control(control)

    comparison = add(
        "compare",
        compare.command,
        "run COMMAND under each policy in a fresh mount and tabulate",
        "storagecache compare my.toml --policies lru,lazy-clock -- tar cf /dev/null .",
    )
    compare.add_arguments(comparison)
    return parser


def _add_set(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the configuration, e.g. cache.policy=lru",
    )


def _mount(options: argparse.Namespace) -> int:
    config = load(options.config, parse_overrides(options.set))
    if options.foreground:
        daemon.run_foreground(
            config, options.directory, lambda _: print("mounted", file=sys.stderr, flush=True)
        )
    else:
        log_file = os.path.abspath(options.log_file) if options.log_file else None
        daemon.run_daemon(config, os.path.abspath(options.directory), log_file)
    return 0


def _umount(options: argparse.Namespace) -> int:
    daemon.unmount(options.directory, timeout_s=options.timeout)
    return 0


def _check(options: argparse.Namespace) -> int:
    config = load(options.config, parse_overrides(options.set))
    if options.directory is not None:
        check_mount(config, options.directory)
    check_stores(config)
    for backend in config.backends:
        print(f"{backend.at}\t{backend.name}\t{backend.url}")
    print(f"{options.config}: good ({len(config.backends)} backends, {config.cache.policy})")
    return 0


def _status(options: argparse.Namespace) -> int:
    status = call(options.directory, "status")
    if options.json:
        print(json.dumps(status, indent=2))
    else:
        print(render_status(status))
    return 0


def render_status(status: dict[str, Any]) -> str:
    """The human form of a status."""
    cache = status["cache"]
    lines = [
        f"{status['mountpoint']}: pid {status['pid']}, up {status['uptime_s']:.0f} s, "
        f"policy {cache['policy']}, repartition {cache['repartition']}, {cache['epochs']} epochs",
        f"memory {format_size(cache['used_bytes'])} of {format_size(cache['capacity_bytes'])}, "
        f"pages of {format_size(cache['page_bytes'])}, dirty {format_size(cache['dirty_bytes'])}, "
        f"{status['filesystem']['inodes']} inodes, {status['filesystem']['open_files']} open files",
        f"{'backend':<16}{'at':<16}{'pages':>9}{'target':>9}{'state':>9}{'hit %':>8}"
        f"{'wait s':>10}{'busy s':>10}{'rel':>7}",
    ]
    for name, part in status["backends"].items():
        accesses = part["hits"] + part["misses"]
        percent = f"{100 * part['hits'] / accesses:.1f}" if accesses else "-"
        lines.append(
            f"{name:<16}{part['at']:<16}{part['pages']:>9}{part['target_pages']:>9}"
            f"{part['state']:>9}{percent:>8}{part['response_s']:>10.2f}{part['busy_s']:>10.2f}"
            f"{part['relative_wait']:>7.2f}"
        )
    for error in (
        f"{name}: {count} x {what}"
        for name, part in status["backends"].items()
        for what, count in part["errors"].items()
        if not what.endswith((":ENOENT", ":ENODATA"))
    ):
        lines.append(f"errors of {error}")
    lines.extend(f"note: {note}" for note in status["notes"])
    return "\n".join(lines)


def _add_control(control: argparse.ArgumentParser) -> None:
    actions = control.add_subparsers(required=True, metavar="ACTION")

    def add(name: str, build: Callable[[argparse.Namespace], Any], text: str) -> Any:
        action = actions.add_parser(name, help=text, description=text)
        action.set_defaults(build=build)
        return action

    fault = add("fault", _layer_call("fault"), "change the fault layer of a backend")
    fault.add_argument("backend", metavar="BACKEND")
    fault.add_argument("arguments", nargs="*", metavar="KEY=VALUE", help="e.g. slow_factor=6")
    age = add("age", _age_call, "age the disk model of a backend")
    age.add_argument("backend", metavar="BACKEND")
    age.add_argument("years", type=float, metavar="YEARS")
    repartition = add("repartition", _repartition_call, "steer the repartitioner")
    repartition.add_argument("--mode", help="wait-balance or none")
    repartition.add_argument("--preset", default="default", help="default, paper or scaled")
    repartition.add_argument("--now", action="store_true", help="end the epoch now")
    repartition.add_argument(
        "--targets", metavar="NAME=PAGES,...", help="set the targets of all partitions by hand"
    )
    policy = add("policy", lambda o: ("policy", {"name": o.name}), "change the policy")
    policy.add_argument("name", metavar="POLICY")
    resize = add("resize", _resize_call, "change the memory budget")
    resize.add_argument("size", metavar="SIZE", help="e.g. 512MiB")


def _layer_call(layer: str) -> Callable[[argparse.Namespace], tuple[str, dict[str, Any]]]:
    def build(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
        arguments: dict[str, Any] = {}
        for pair in options.arguments:
            key, equals, value = pair.partition("=")
            if not equals:
                raise ConfigError(f"ctl {layer}", f"{pair!r} is not KEY=VALUE")
            arguments[key] = _value(value)
        return "layer", {"backend": options.backend, "layer": layer, "arguments": arguments}

    return build


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _age_call(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    arguments = {"years": options.years}
    return "layer", {"backend": options.backend, "layer": "aging", "arguments": arguments}


def _repartition_call(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    targets: dict[str, int] | None = None
    if options.targets is not None:
        targets = {}
        for pair in options.targets.split(","):
            name, _, pages = pair.partition("=")
            try:
                targets[name] = int(pages)
            except ValueError:
                raise ConfigError("--targets", f"{pair!r} is not NAME=PAGES") from None
    return "repartition", {
        "mode": options.mode,
        "preset": options.preset,
        "targets": targets,
        "now": options.now,
    }


def _resize_call(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    try:
        return "resize", {"memory_bytes": parse_size(options.size)}
    except ValueError as exc:
        raise ConfigError("SIZE", str(exc)) from exc


def _ctl(options: argparse.Namespace) -> int:
    command, arguments = options.build(options)
    try:
        result = call(options.directory, command, **arguments)
    except ControlError as exc:
        print(f"storagecache: {exc}", file=sys.stderr)
        return _EXIT_BAD_INPUT
    print(json.dumps(result))
    return 0
