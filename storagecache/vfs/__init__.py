"""The filesystem without FUSE: mount table, inodes, lookup counts, handles, attribute caches."""

from .filesystem import Filesystem as Filesystem
from .handles import DirectoryHandle as DirectoryHandle
from .handles import FileHandle as FileHandle
from .inodes import Inode as Inode
from .inodes import Inodes as Inodes
from .stores import Store as Store
