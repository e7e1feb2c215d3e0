"""The configuration: TOML and overrides in, frozen dataclasses out; every error names its key."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote_to_bytes, urlsplit

from ._core import POLICIES
from .errors import ConfigError
from .sizes import parse_size

_FILE_MAX_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_SHOWN_MAX: Final = 80
_WRITABLE_BY_OTHERS: Final = 0o022


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """[cache]"""

    memory_bytes: int = 256 << 20
    page_bytes: int = 64 << 10
    policy: str = "lazy-clock"
    repartition: str = "wait-balance"
    preset: str = "default"
    wait: str | None = None
    threshold: float | None = None
    window: int = 1000
    increment: float = 0.002
    trend: str = "relative"
    tickets: str = "reciprocal"
    clock_insert_bit: bool = False
    max_epoch_s: float = 60.0
    min_sample: int = 50
    seed: int = 0
    fill: Literal["page", "sector"] = "page"
    readahead_bytes: int = 4 << 20


@dataclass(frozen=True, slots=True)
class BackendConfig:
    """[[backend]]"""

    name: str
    at: str
    url: str
    layers: tuple[Mapping[str, Any], ...] = ()
    share: float | None = None
    service_ms: float | None = None
    timeout_metadata_s: float = 10.0
    timeout_data_s: float = 30.0
    attr_ttl_s: float = 1.0
    entry_ttl_s: float = 1.0
    negative_ttl_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MountConfig:
    """[mount]"""

    kernel_cache: Literal["auto", "off"] = "auto"
    allow_other: bool = False
    read_only: bool = False
    xattrs: bool = True
    fsname: str = "storagecache"


@dataclass(frozen=True, slots=True)
class MetricsConfig:
    """[metrics]"""

    listen: str = ""


@dataclass(frozen=True, slots=True)
class Config:
    """One mount."""

    cache: CacheConfig
    backends: tuple[BackendConfig, ...]
    mount: MountConfig = field(default_factory=MountConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def cache_arguments(self) -> dict[str, Any]:
        """The keyword arguments of the core's Cache."""
        cache = self.cache
        shares = [backend.share for backend in self.backends]
        service = [backend.service_ms for backend in self.backends]
        return {
            "policy": cache.policy,
            "memory_bytes": cache.memory_bytes,
            "page_bytes": cache.page_bytes,
            "backends": len(self.backends),
            "seed": cache.seed,
            "repartition": cache.repartition,
            "preset": cache.preset,
            "wait": cache.wait,
            "threshold": cache.threshold,
            "window": cache.window,
            "increment": cache.increment,
            "trend": cache.trend,
            "tickets": cache.tickets,
            "clock_insert_bit": cache.clock_insert_bit,
            "max_epoch_ns": int(cache.max_epoch_s * 1e9),
            "min_sample": cache.min_sample,
            "shares": None if None in shares else shares,
            "service_ns": None
            if None in service
            else [max(1, round(one * 1e6)) for one in service if one is not None],
        }


# values

Check = Callable[[Any], Any]


class _Override(str):
    """A value from the command line: only there is text taken for a number or a flag."""

    __slots__ = ()


def _shown(value: Any) -> str:
    """`value` for an error message: one line, not long, whatever it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits; deep nesting
        return "this value"
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _shown(name)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{_shown(value)} is no string")
    if "\0" in value:
        raise ValueError("contains a NUL character")
    return str(value)


def _flag(value: Any) -> bool:
    if isinstance(value, _Override) and value in ("true", "false"):
        return value == "true"
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is not true or false")
    return value


def _size(value: Any) -> int:
    try:
        return parse_size(value)
    except ValueError:
        raise ValueError(f"{_shown(value)} is no size (examples: 64KiB, 2GiB, 4096)") from None


def _number(low: float, high: float, *, whole: bool = False) -> Check:
    def check(value: Any) -> Any:
        if isinstance(value, _Override):
            try:
                value = int(value) if whole else float(value)
            except ValueError:
                raise ValueError(f"{_shown(value)} is no number") from None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{_shown(value)} is no number")
        if whole and not isinstance(value, int):
            raise ValueError(f"{_shown(value)} is no whole number")
        if not low <= value <= high:  # also NaN, and integers beyond any float
            raise ValueError(f"{_shown(value)} is not from {low:g} to {high:g}")
        return value if whole else float(value)

    return check


def _one_of(*known: str) -> Check:
    def check(value: Any) -> str:
        if value not in known:
            raise ValueError(f"unknown value {_shown(value)} (known: {' '.join(known)})")
        return str(value)

    return check


def _page_bytes(value: Any) -> int:
    size = _size(value)
    if size & (size - 1) or not 4096 <= size <= 4 << 20:
        raise ValueError(f"{_shown(value)} is no power of two from 4KiB to 4MiB")
    return size


def _memory_bytes(value: Any) -> int:
    size = _size(value)
    if size < 64 << 10:
        raise ValueError(f"{_shown(value)} is less than 64KiB")
    if size > 1 << 46:
        raise ValueError(f"{_shown(value)} is more than 64TiB")
    return size


def _policy(value: Any) -> str:
    name = _text(value)
    if name not in POLICIES:
        raise ValueError(f"unknown policy {_shown(name)} (known: {' '.join(POLICIES)})")
    return name


def _name(value: Any) -> str:
    name = _text(value)
    if not _NAME.fullmatch(name):
        raise ValueError(f"{_shown(name)} is not made of a-z, 0-9, - and _ (at most 63)")
    return name


def _at(value: Any) -> str:
    path = _text(value)
    if not path.startswith("/"):
        raise ValueError(f"{_shown(path)} does not start with /")
    parts = [part for part in path.split("/") if part]
    if not parts:
        raise ValueError("a store cannot be the root itself; give it a directory such as /data")
    for part in parts:
        if part in (".", ".."):
            raise ValueError(f"{_shown(path)} contains {part!r}")
        if len(os.fsencode(part)) > 255:
            raise ValueError("a name longer than 255 bytes")
    return "/" + "/".join(parts)


def _url(value: Any) -> str:
    url = _text(value)
    try:
        split = urlsplit(url)
    except ValueError as exc:
        raise ValueError(f"{_shown(url)}: {exc}") from None
    if not split.scheme:
        raise ValueError(f"no scheme in {_shown(url)} (for a local folder write file:///path)")
    if b"\0" in unquote_to_bytes(split.path):
        raise ValueError("contains a NUL character")
    return url


def _layers(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not all(isinstance(layer, dict) for layer in value):
        raise ValueError('is no list of tables such as [{type = "aging", years = 6}]')
    return tuple(value)


def _listen(value: Any) -> str:
    text = _text(value)
    if not text:
        return text
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{_shown(text)} is not HOST:PORT")
    try:
        loopback = ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if not loopback:
        raise ValueError(f"{_shown(host)} is no loopback address")
    return text


def _fsname(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"[\w.:/@-]{1,128}", text):
        raise ValueError(f"{text!r} contains characters a mount option cannot carry")
    return text


_SECONDS: Final = _number(0.0, 86400.0)
_DEADLINE: Final = _number(0.001, 86400.0)
_CACHE: Final[dict[str, Check]] = {
    "memory_bytes": _memory_bytes,
    "page_bytes": _page_bytes,
    "policy": _policy,
    "repartition": _one_of("wait-balance", "none"),
    "preset": _one_of("default", "paper", "scaled"),
    "wait": _one_of("busy", "response"),
    "threshold": _number(1.0, 1e6),
    "window": _number(1, 10**9, whole=True),
    "increment": _number(1e-6, 1.0),
    "trend": _one_of("relative", "absolute"),
    "tickets": _one_of("reciprocal", "complement"),
    "clock_insert_bit": _flag,
    "max_epoch_s": _SECONDS,
    "min_sample": _number(1, 10**9, whole=True),
    "seed": _number(0, 2**64 - 1, whole=True),
    "fill": _one_of("page", "sector"),
    "readahead_bytes": _size,
}
_BACKEND: Final[dict[str, Check]] = {
    "name": _name,
    "at": _at,
    "url": _url,
    "layers": _layers,
    "share": _number(1e-9, 1e9),
    "service_ms": _number(1e-6, 1e9),
    "timeout_metadata_s": _DEADLINE,
    "timeout_data_s": _DEADLINE,
    "attr_ttl_s": _SECONDS,
    "entry_ttl_s": _SECONDS,
    "negative_ttl_s": _SECONDS,
}
_MOUNT: Final[dict[str, Check]] = {
    "kernel_cache": _one_of("auto", "off"),
    "allow_other": _flag,
    "read_only": _flag,
    "xattrs": _flag,
    "fsname": _fsname,
}
_METRICS: Final[dict[str, Check]] = {"listen": _listen}


def _section(key: str, table: Any, checks: Mapping[str, Check]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise ConfigError(key, "is no table")
    values = {}
    for name, value in table.items():
        check = checks.get(name)
        if check is None:
            known = " ".join(checks)
            raise ConfigError(f"{key}.{_key(name)}", f"unknown key (known: {known})")
        try:
            values[name] = check(value)
        except ValueError as exc:
            raise ConfigError(f"{key}.{name}", str(exc)) from exc
    return values


# loading


def load(path: str | os.PathLike[str], overrides: Mapping[str, str] | None = None) -> Config:
    """The configuration in a file, with `overrides` such as {"cache.policy": "lru"}.

    Raises ConfigError that names the key, or the file if it cannot be read.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_mode & _WRITABLE_BY_OTHERS:
                raise ConfigError(name, "may be written by group or others: chmod go-w")
            content = file.read(_FILE_MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(name, exc.strerror or str(exc)) from exc
    if len(content) > _FILE_MAX_BYTES:
        raise ConfigError(name, "larger than 1 MiB")
    try:
        data = tomllib.loads(content.decode())
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(name, f"no TOML: {exc}") from exc
    except UnicodeDecodeError as exc:
        line = content.count(b"\n", 0, exc.start) + 1
        raise ConfigError(name, f"no TOML: not UTF-8 (at line {line})") from exc
    except (ValueError, RecursionError) as exc:
        problem = "no TOML: a number with too many digits, or nested too deeply"
        raise ConfigError(name, problem) from exc
    return parse(data, overrides or {})


def parse_overrides(pairs: list[str]) -> dict[str, str]:
    """KEY=VALUE pairs as a mapping. Raises ConfigError for one without ``=``."""
    result = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError("--set", f"{pair!r} is not KEY=VALUE")
        result[key] = value
    return result


def parse(data: Mapping[str, Any], overrides: Mapping[str, str]) -> Config:
    """The configuration in a parsed TOML document. Raises ConfigError."""
    tables = dict(data)
    for key, value in overrides.items():
        section, dot, name = key.partition(".")
        if not dot or section not in ("cache", "mount", "metrics"):
            raise ConfigError(key, "cannot be set (only cache.*, mount.* and metrics.*)")
        table = tables.get(section, {})
        if not isinstance(table, dict):
            raise ConfigError(section, "is no table")
        tables[section] = {**table, name: _Override(value)}
    for key in tables:
        if key not in ("cache", "backend", "mount", "metrics"):
            raise ConfigError(_key(key), "unknown key (known: cache backend mount metrics)")
    backends = _backends(tables.get("backend", []))
    cache = CacheConfig(**_section("cache", tables.get("cache", {}), _CACHE))
    if cache.memory_bytes // cache.page_bytes < 2 * len(backends):
        raise ConfigError(
            "cache.memory_bytes",
            f"{cache.memory_bytes} bytes hold too few pages of {cache.page_bytes}"
            f" for {len(backends)} backends",
        )
    return Config(
        cache,
        backends,
        MountConfig(**_section("mount", tables.get("mount", {}), _MOUNT)),
        MetricsConfig(**_section("metrics", tables.get("metrics", {}), _METRICS)),
    )


def _backends(tables: Any) -> tuple[BackendConfig, ...]:
    if not isinstance(tables, list):
        raise ConfigError("backend", "is no list of tables: write [[backend]]")
    if not tables:
        raise ConfigError("backend", "none given: write at least one [[backend]]")
    result: list[BackendConfig] = []
    for index, table in enumerate(tables):
        key = f"backend[{index}]"
        values = _section(key, table, _BACKEND)
        for needed in ("name", "at", "url"):
            if needed not in values:
                raise ConfigError(f"{key}.{needed}", "missing")
        backend = BackendConfig(**values)
        for number, layer in enumerate(backend.layers):
            if not isinstance(layer.get("type"), str):
                problem = "is no string" if "type" in layer else "missing"
                raise ConfigError(f"{key}.layers[{number}].type", problem)
        for other in result:
            if backend.name == other.name:
                raise ConfigError(f"{key}.name", f"{backend.name!r} is used twice")
            if _nested(backend.at, other.at) or _nested(other.at, backend.at):
                raise ConfigError(
                    f"{key}.at", f"{backend.at!r} overlaps {other.at!r} of {other.name!r}"
                )
        result.append(backend)
    for name in ("share", "service_ms"):
        given = [getattr(backend, name) is not None for backend in result]
        if any(given) and not all(given):
            key = f"backend[{given.index(False)}].{name}"
            raise ConfigError(key, "missing, as other backends have it: give it to all or to none")
    return tuple(result)


def _nested(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer + "/")


# against the machine


def check_mount(config: Config, mountpoint: str | os.PathLike[str]) -> None:
    """Refuse a mount point that cannot be one and stores inside it. Raises ConfigError."""
    name = os.fspath(mountpoint)
    try:
        mounted = os.path.ismount(name)
        entries = os.listdir(name)
    except OSError as exc:
        if exc.errno == errno.ENOTCONN:
            problem = f"a mount whose daemon died is there: storagecache umount {name}"
            raise ConfigError(name, problem) from exc
        raise ConfigError(name, exc.strerror or str(exc)) from exc
    if mounted:
        raise ConfigError(name, "something is mounted there already")
    if entries:
        raise ConfigError(name, "is not empty")
    inside = os.fsencode(os.path.realpath(name))
    for index, backend in enumerate(config.backends):
        split = urlsplit(backend.url)
        if split.scheme != "file":
            continue
        root = os.path.realpath(unquote_to_bytes(split.path))
        if root == inside or root.startswith(inside.rstrip(b"/") + b"/"):
            raise ConfigError(
                f"backend[{index}].url ({backend.name})", "lies inside the mount point itself"
            )
        if inside.startswith(root.rstrip(b"/") + b"/"):
            raise ConfigError(
                f"backend[{index}].url ({backend.name})",
                f"contains the mount point {name}: the mount would show itself",
            )
