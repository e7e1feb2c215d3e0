"""The one write path: where data goes before `write` returns, and what fsync and close wait for.

Every backend is written through at present: the backend has the data, then the cached pages are
brought up to date, then `write` returns. A backend whose `Properties.write` is ``writeback`` needs
the durable spool, which is not there yet, and is refused at mount.
"""

from __future__ import annotations

from .backend import File
from .cache import PageCache
from .types import Attributes, Changes


class WriteThrough:
    """Writes to the backend first, then to the pages of the cache."""

    def __init__(self, cache: PageCache) -> None:
        self._core = cache.core

    async def write(self, file: File, slot: int, offset: int, data: bytes) -> Attributes:
        """All of `data` is in the backend when this returns; attributes as they are then.

        A page that was being fetched meanwhile is dropped, so that no reader sees the old bytes
        after this returned; also when the write failed, as part of it may have arrived.
        """
        try:
            attributes = await file.write(offset, data)
        except BaseException:
            page_bytes = self._core.page_bytes
            last = (offset + max(1, len(data)) - 1) // page_bytes
            self._core.invalidate(slot, offset // page_bytes, last)
            raise
        self._core.write(slot, offset, data)
        return attributes

    async def truncate(self, file: File, slot: int, size: int) -> Attributes:
        """Change the length of an open file."""
        attributes = await file.setattr(Changes(size=size))
        self._core.truncate(slot, size)
        return attributes

    async def flush(self, file: File) -> None:
        """Errors of earlier writes, to whoever closes."""
        await file.flush()

    async def fsync(self, file: File, *, data_only: bool) -> None:
        """Durable in the backend when this returns."""
        await file.fsync(data_only=data_only)
