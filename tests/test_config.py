"""Good configurations load; every bad one is refused with one line that names the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storagecache.config import check_mount, load, parse
from storagecache.errors import ConfigError
from storagecache.sizes import format_size, parse_size

GOOD = """
[cache]
memory_bytes = "64MiB"
[[backend]]
name = "a"
at = "/a"
url = "memory://"
[[backend]]
name = "b"
at = "/deep/b/"
url = "memory://"
layers = [{type = "aging", years = 6}]
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "c.toml"
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_defaults_and_overrides(tmp_path: Path) -> None:
    config = load(written(tmp_path, GOOD), {"cache.policy": "eager-lru", "cache.window": "7"})
    assert (config.cache.memory_bytes, config.cache.page_bytes) == (64 << 20, 64 << 10)
    assert (config.cache.policy, config.cache.window) == ("eager-lru", 7)
    assert [backend.at for backend in config.backends] == ["/a", "/deep/b"]
    assert config.cache_arguments()["backends"] == 2
    assert config.mount.kernel_cache == "auto"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ('memory_bytes = "64MiB"\ncolour = 1', "cache.colour"),
        ('policy = "lazy-fifo9"', "cache.policy"),
        ('memory_bytes = "lots"', "cache.memory_bytes"),
        ("memory_bytes = -5", "cache.memory_bytes"),
        ("memory_bytes = nan", "cache.memory_bytes"),
        ('memory_bytes = "70KiB"', "cache.memory_bytes"),
        ('page_bytes = "5000"', "cache.page_bytes"),
        ("threshold = nan", "cache.threshold"),
        ("threshold = 1e999", "cache.threshold"),
        ("threshold = true", "cache.threshold"),
        ("window = 1.5", "cache.window"),
        ("clock_insert_bit = 1", "cache.clock_insert_bit"),
        ('repartition = "curve"', "cache.repartition"),
    ],
)
def test_bad_cache_keys(tmp_path: Path, change: str, key: str) -> None:
    text = GOOD.replace('memory_bytes = "64MiB"', change)
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('name = "b"', 'name = "a"', "backend[1].name"),
        ('name = "b"', 'name = "../b"', "backend[1].name"),
        ('name = "b"', "", "backend[1].name"),
        ('at = "/deep/b/"', 'at = "/a"', "backend[1].at"),
        ('at = "/deep/b/"', 'at = "/a/b"', "backend[1].at"),
        ('at = "/deep/b/"', 'at = "/"', "backend[1].at"),
        ('at = "/deep/b/"', 'at = "/x/../y"', "backend[1].at"),
        ('at = "/deep/b/"', 'at = "b"', "backend[1].at"),
        ("layers = [{", "share = 0.0\nlayers = [{", "backend[1].share"),
        ("layers = [{", "timeout_data_s = inf\nlayers = [{", "backend[1].timeout_data_s"),
        ("layers = [{", "speed = 1\nlayers = [{", "backend[1].speed"),
        ("[{type", "[3, {type", "backend[1].layers"),
        ("[cache]", "[caches]", "caches"),
        ("[cache]", "backend = 3\n[cache]", None),
        ("[[backend]]", "[backend]", None),
        ("[cache]", '[mount]\nkernel_cache = "on"\n[cache]', "mount.kernel_cache"),
        ("[cache]", '[metrics]\nlisten = "0.0.0.0:1"\n[cache]', "metrics.listen"),
        ("[cache]", '[metrics]\nlisten = "nowhere"\n[cache]', "metrics.listen"),
    ],
)
def test_bad_tables(tmp_path: Path, old: str, new: str, key: str | None) -> None:
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.key == (key or str(path))


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load(written(tmp_path, "#" * (2 << 20)))
    path = written(tmp_path, GOOD)
    path.chmod(0o662)
    with pytest.raises(ConfigError, match="may be written"):
        load(path)
    with pytest.raises(ConfigError, match="none given"):
        load(written(tmp_path, "[cache]"))


def test_mount_points(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.mkdir()
    config = parse({"backend": [{"name": "a", "at": "/a", "url": f"file://{root}"}]}, {})
    target = tmp_path / "mnt"
    with pytest.raises(ConfigError, match="No such file"):
        check_mount(config, target)
    target.mkdir()
    check_mount(config, target)
    (target / "x").touch()
    with pytest.raises(ConfigError, match="not empty"):
        check_mount(config, target)
    with pytest.raises(ConfigError, match="Not a directory"):
        check_mount(config, target / "x")
    with pytest.raises(ConfigError, match="already"):
        check_mount(config, "/proc")
    with pytest.raises(ConfigError, match=r"backend\[0\]\.url.*inside the mount"):
        check_mount(config, root)
    (root / "inner").mkdir()
    with pytest.raises(ConfigError, match=r"backend\[0\]\.url.*contains the mount"):
        check_mount(config, root / "inner")


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["cache", "backend", "mount", "name", "at", "url", "page_bytes", "x"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_junk_is_refused_with_a_config_error(junk: object) -> None:
    data = junk if isinstance(junk, dict) else {"backend": junk}
    try:
        config = parse(data, {})
    except ConfigError as exc:
        assert exc.key
    else:
        assert config.backends


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20, 5 << 30])
def test_sizes_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "-1", "1e9", "nan", "5 apples", "9" * 30, True, 1.5, None]
)
def test_bad_sizes(text: object) -> None:
    with pytest.raises(ValueError, match=r"size|range"):
        parse_size(text)


def test_examples_are_good() -> None:
    for path in sorted((Path(__file__).parent.parent / "examples").glob("*.toml")):
        os.chmod(path, 0o644)
        assert load(path).backends
