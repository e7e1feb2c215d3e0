"""The yardstick: a pyfuse3 filesystem that does nothing.

python nullfs.py DIR read     one file of 1 GiB, every read is a constant buffer
python nullfs.py DIR list N   a directory of N empty files
"""

from __future__ import annotations

import errno
import stat
import sys
from typing import Any

import pyfuse3
import trio

FILE_BYTES = 1 << 30
FIRST = 1000


class Null(pyfuse3.Operations):
    """One file ``f`` and a directory ``d`` of `entries` files."""

    def __init__(self, entries: int) -> None:
        super().__init__()
        self.entries = entries
        self.buffer = bytes(1 << 20)
        self.views = {size: memoryview(self.buffer)[:size] for size in (4096, 131072, 1 << 20)}

    def attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        if inode in (pyfuse3.ROOT_INODE, 3):
            entry.st_mode = stat.S_IFDIR | 0o755
        else:
            entry.st_mode = stat.S_IFREG | 0o644
            entry.st_size = FILE_BYTES
        entry.st_nlink = 1
        entry.attr_timeout = entry.entry_timeout = 1.0
        return entry

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        return self.attributes(inode)

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        if parent_inode == 3:
            return self.attributes(FIRST + int(name[1:]))
        if name in (b"f", b"d"):
            return self.attributes(2 if name == b"f" else 3)
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode, direct_io=True)

    async def read(self, fh: int, off: int, size: int) -> Any:
        return self.views.get(size) or memoryview(self.buffer)[:size]

    async def opendir(self, inode: int, ctx: Any) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        names = (
            [(b"f", 2), (b"d", 3)]
            if fh == pyfuse3.ROOT_INODE
            else [(b"n%05d" % number, FIRST + number) for number in range(start_id, self.entries)]
        )
        skip = start_id if fh == pyfuse3.ROOT_INODE else 0
        for position, (name, inode) in enumerate(names[skip:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, self.attributes(inode), position):
                return


def main() -> None:
    entries = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    options = set(pyfuse3.default_options) | {"fsname=null"}
    pyfuse3.init(Null(entries), sys.argv[1], options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close()


if __name__ == "__main__":
    main()
