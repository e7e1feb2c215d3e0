"""storagecache: unequal stores mounted as one tree, through a storage-aware cache."""

__version__ = "0.1.0"
