"""The backends and layers that ship with storagecache, found through entry points."""
