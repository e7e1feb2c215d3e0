"""Open files and directories of the mount."""

from __future__ import annotations

from ..backend import DirectoryStream
from ..cache import OpenFile
from ..readahead import Stream
from ..types import Entry
from .inodes import Inode


class FileHandle:
    """One open(2) of a regular file."""

    __slots__ = ("inode", "source", "stream")

    def __init__(self, inode: Inode, source: OpenFile, stream: Stream) -> None:
        self.inode = inode
        self.source = source
        self.stream = stream


class DirectoryHandle:
    """One opendir(3): the backend's stream, read as far as the kernel has asked.

    `names` are the entries handed out so far: position k of the directory is `names[k]`.
    """

    __slots__ = ("ahead", "ended", "inode", "names", "since", "stream")

    def __init__(self, inode: Inode) -> None:
        self.inode = inode
        self.stream: DirectoryStream | None = None
        self.names: list[bytes] = []
        self.ahead: list[Entry] = []  # read from the stream, not handed out yet; last comes first
        self.ended = False
        self.since = 0  # Inodes.clock when `ahead` was read

    async def rewind(self) -> None:
        stream, self.stream = self.stream, None
        self.names = []
        self.ahead = []
        self.ended = False
        if stream is not None:
            await stream.aclose()
