"""Sizes in bytes as people write them: "64KiB", "2GiB", "10MB", 4096."""

from __future__ import annotations

import re
from typing import Final

_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 10**3,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 10**6,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 10**9,
    "t": 1 << 40,
    "tib": 1 << 40,
    "tb": 10**12,
}
_SIZE: Final = re.compile(r"\s*(\d{1,18})(?:\.(\d{1,9}))?\s*([A-Za-z]*)\s*", re.ASCII)
_MAX: Final = 1 << 62


def parse_size(value: object) -> int:
    """Bytes. Raises ValueError for anything that is no size from 0 to 2**62."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        found = _SIZE.fullmatch(value)
        if found is None or found[3].lower() not in _UNITS:
            raise ValueError(f"{value!r} is no size (examples: 64KiB, 2GiB, 4096)")
        unit = _UNITS[found[3].lower()]
        fraction = found[2] or ""
        size = int(found[1]) * unit + int(fraction or 0) * unit // 10 ** len(fraction)
    else:
        raise ValueError(f"{value!r} is no size (examples: 64KiB, 2GiB, 4096)")
    if not 0 <= size <= _MAX:
        raise ValueError(f"{value!r} is out of range")
    return size


def format_size(size: int) -> str:
    """The largest binary unit that gives at least 1, with one digit where it is not whole."""
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return (
                f"{size // factor} {unit}" if size % factor == 0 else f"{size / factor:.1f} {unit}"
            )
    return f"{size} B"
