"""Parameters of layers: read from a table, checked, taken exactly once."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from typing import Any

from storagecache.sizes import parse_size


class Parameters:
    """Takes parameters out of a table; `done` refuses what nobody took."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self._left = dict(table)
        self._known: list[str] = []

    def _take(self, name: str, default: Any) -> Any:
        self._known.append(name)
        return self._left.pop(name, default)

    def number(self, name: str, default: float, *, low: float = 0.0, high: float = 1e12) -> float:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name}: {value!r} is no number")
        if value is not default and (not math.isfinite(value) or not low <= value <= high):
            raise ValueError(f"{name}: {value} is not from {low:g} to {high:g}")
        return float(value)

    def whole(self, name: str, default: int, *, low: int = 0, high: int = 2**63) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name}: {value!r} is no whole number from {low} to {high}")
        return value

    def size(self, name: str, default: int) -> int:
        value = self._take(name, default)
        try:
            return parse_size(value)
        except ValueError as exc:
            raise ValueError(f"{name}: {exc}") from exc

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{name}: {value!r} is not true or false")
        return value

    def choice(self, name: str, default: str, known: tuple[str, ...]) -> str:
        value = self._take(name, default)
        if value not in known:
            raise ValueError(f"{name}: {value!r} is unknown (known: {' '.join(known)})")
        return str(value)

    def errno(self, name: str, default: str) -> int:
        value = self._take(name, default)
        if isinstance(value, str):
            code = getattr(errno, value, None)
            if isinstance(code, int):
                return code
        elif isinstance(value, int) and value in errno.errorcode:
            return value
        raise ValueError(f"{name}: {value!r} is no errno such as EIO")

    def done(self) -> None:
        """Raises ValueError for a parameter nobody asked for."""
        for name in self._left:
            raise ValueError(f"{name}: unknown parameter (known: {' '.join(self._known)})")
