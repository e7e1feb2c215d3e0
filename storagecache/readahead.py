"""Sequential detection and the prefetch window of one open file."""

from __future__ import annotations

from typing import Final

NEVER: Final = 1 << 62
_SLACK_BYTES: Final = 1 << 20  # the kernel sends a stream's requests slightly out of order
_FIRST_WINDOW_BYTES: Final = 256 << 10


class Stream:
    """Decides what to prefetch for one open file, from the reads it sees.

    A read that starts near the end of the one before continues a stream. From the second such
    read on, the window doubles up to `window_max_bytes`; the next one is asked for when the reader
    has come within half of a window of what was already asked for (`trigger`).
    """

    __slots__ = ("_ahead", "_window", "next_offset", "streak", "trigger", "window_max_bytes")

    def __init__(self, window_max_bytes: int) -> None:
        self.window_max_bytes = window_max_bytes
        self.next_offset = 0
        self.streak = 0
        self.trigger = NEVER if window_max_bytes == 0 else 0
        self._window = 0
        self._ahead = 0

    def advance(self, offset: int, size: int, object_size: int) -> tuple[int, int] | None:
        """Take note of a read; return (offset, size) to prefetch now, or None."""
        end = offset + size
        if abs(offset - self.next_offset) > _SLACK_BYTES or (self.streak == 0 and offset != 0):
            self.streak = 1 if offset else 0
            self._window = 0
            self._ahead = end
            self.next_offset = end
            self.trigger = 0
            if offset:
                return None
        self.streak += 1
        self.next_offset = max(self.next_offset, end)
        if self.streak < 2 or self.window_max_bytes == 0:
            return None
        if self.next_offset < self.trigger:
            return None
        start = max(self._ahead, self.next_offset)
        if start >= object_size:
            self.trigger = NEVER
            return None
        self._window = min(
            max(2 * self._window, 2 * size, _FIRST_WINDOW_BYTES), self.window_max_bytes
        )
        length = min(self._window, object_size - start)
        self._ahead = start + length
        self.trigger = self._ahead - self._window // 2
        return start, length
