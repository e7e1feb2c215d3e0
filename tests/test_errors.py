"""Each exception class has an errno; the table is total."""

from __future__ import annotations

import errno

from storagecache import errors


def all_classes(base: type[errors.StorageCacheError]) -> set[type[errors.StorageCacheError]]:
    return {base}.union(*(all_classes(sub) for sub in base.__subclasses__()))


def test_every_class_has_an_errno_and_stands_in_the_tree() -> None:
    classes = all_classes(errors.StorageCacheError)
    assert len(classes) > 6
    for one in classes:
        assert one.errno in errno.errorcode
        assert isinstance(one.retryable, bool)
        assert one.__name__ in (errors.__doc__ or "").split()


def test_os_errors_keep_their_errno() -> None:
    assert errors.BackendError.from_os_error(OSError(errno.ENOSPC, "full")).errno == errno.ENOSPC
    assert errors.BackendError.from_os_error(OSError("odd")).errno == errno.EIO
    assert errors.BackendError(errno.ETIMEDOUT).retryable
    assert not errors.BackendError(errno.ENOENT).retryable
