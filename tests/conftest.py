"""What all tests share: a log guard and a mount in a process of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storagecache.compare import fresh_mount
from storagecache.control import ControlClient


@pytest.fixture(autouse=True)
def no_unexpected_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A warning or error that a test did not clear fails it."""
    yield
    unexpected = [r for r in caplog.get_records("call") if r.levelno >= logging.WARNING]
    assert not unexpected, [record.getMessage() for record in unexpected]


class Mount:
    """A live mount of one test: `path` is where, `client` its control socket."""

    def __init__(self, path: Path, client: ControlClient) -> None:
        self.path = path
        self.client = client

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.call("status")
        return found

    def settled(self) -> dict[str, Any]:
        """The status once the kernel's last releases have arrived (they are asynchronous)."""
        deadline = time.monotonic() + 10
        while True:
            status = self.status()
            busy = status["filesystem"]["open_files"] + status["filesystem"]["fetches"]
            if not busy or time.monotonic() > deadline:
                return status


CONFIG = """
[cache]
memory_bytes = "{memory}"
page_bytes = "{page}"
policy = "lazy-clock"
{cache}
[[backend]]
name = "one"
at = "/one"
url = "file://{root}/one"
{one}
[[backend]]
name = "two"
at = "/below/two"
url = "memory://"
{two}
[mount]
allow_other = true
{mount}
"""


@contextmanager
def mounted(root: Path, **parts: str) -> Iterator[Mount]:
    """Mount a file store at /one and a memory store at /below/two; nothing may be left over."""
    values = {"memory": "24MiB", "page": "64KiB", "cache": "", "one": "", "two": "", "mount": ""}
    (root / "one").mkdir(exist_ok=True)
    config = root / "config.toml"
    config.write_text(CONFIG.format(root=root, **{**values, **parts}))
    config.chmod(0o600)
    with fresh_mount(str(config), []) as (path, client):
        mount = Mount(path, client)
        yield mount
        status = mount.settled()
        assert status["cache"]["pinned_pages"] == 0
        assert status["cache"]["dirty_bytes"] == 0
        assert status["cache"]["filling_pages"] == 0
        assert status["filesystem"]["open_files"] == 0
        assert status["filesystem"]["fetches"] == 0
        assert status["failures"] == {}


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    with mounted(tmp_path) as live:
        yield live
