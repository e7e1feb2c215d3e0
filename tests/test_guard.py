"""Every FUSE handler survives an exception: EIO to its caller, the mount lives on."""

from __future__ import annotations

import errno
import inspect
from types import SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio
import trio.testing

from storagecache import fuse
from storagecache.errors import BackendError
from storagecache.metrics import FrontStatistics

HANDLERS = sorted(
    name
    for name, member in vars(pyfuse3.Operations).items()
    if inspect.iscoroutinefunction(member) and name not in ("poll", "stacktrace")
)


class Broken:
    """A filesystem of which every attribute raises, or waits for ever."""

    def __init__(self, exc: BaseException | None) -> None:
        self.exc = exc
        self.stores: list[Any] = []
        self.handles: dict[int, Any] = {}

    @property
    def inodes(self) -> Any:
        return SimpleNamespace(by_number={}, get=self._fail, forget=self._fail)

    def _fail(self, *args: object) -> Any:
        if self.exc is not None:
            raise self.exc

    def __getattr__(self, name: str) -> Any:
        if self.exc is None:

            async def forever(*args: object, **kwargs: object) -> None:
                await trio.sleep_forever()

            return forever
        raise self.exc


def front(exc: BaseException | None) -> fuse.Front:
    return fuse.Front(Broken(exc), FrontStatistics(), kernel_cache=True)  # type: ignore[arg-type]


def arguments(name: str) -> list[Any]:
    count = len(inspect.signature(getattr(pyfuse3.Operations, name)).parameters) - 1
    return [1] * count


def test_every_handler_is_ours() -> None:
    assert {"lookup", "read", "write", "setxattr", "readdir", "create"} <= set(HANDLERS)
    for name in HANDLERS:
        assert name in vars(fuse.Front), f"{name} is pyfuse3's default"


@pytest.mark.parametrize("name", HANDLERS)
async def test_a_bug_is_eio(name: str, caplog: pytest.LogCaptureFixture) -> None:
    one = front(ZeroDivisionError("bug"))
    argument = [[(1, 1)]] if name == "forget" else arguments(name)
    if name == "forget":
        one.filesystem = SimpleNamespace(stores=[], inodes=None)  # type: ignore[assignment]
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await getattr(one, name)(*argument)
    assert caught.value.errno == errno.EIO
    assert sum(one.statistics.failures.values()) == 1
    assert "failed unexpectedly" in caplog.text
    caplog.clear()


@pytest.mark.parametrize("name", sorted(set(HANDLERS) - {"forget", "read"}))
async def test_a_domain_error_keeps_its_errno(name: str) -> None:
    one = front(BackendError(errno.ENOSPC))
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await getattr(one, name)(*arguments(name))
    assert caught.value.errno == errno.ENOSPC
    assert one.statistics.failures == {}


async def test_a_wait_ends_at_the_deadline(autojump_clock: trio.testing.MockClock) -> None:
    one = front(None)
    begun = trio.current_time()
    with pytest.raises(pyfuse3.FUSEError) as caught:
        await one.statfs(None)
    assert caught.value.errno == errno.ETIMEDOUT
    assert trio.current_time() - begun == pytest.approx(10.0)
