"""Good configurations load; every bad one is refused with one line that names the key."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storagecache._core import Cache
from storagecache.backend import open_backend
from storagecache.config import (
    BackendConfig,
    CacheConfig,
    MetricsConfig,
    MountConfig,
    check_mount,
    load,
    parse,
)
from storagecache.errors import ConfigError
from storagecache.sizes import format_size, parse_size

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.toml"))
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
        ('window = "7"', "cache.window"),
        ('threshold = "2.5"', "cache.threshold"),
        ('clock_insert_bit = "true"', "cache.clock_insert_bit"),
        ("threshold = 1" + "0" * 400, "cache.threshold"),
        ("window = 0x" + "f" * 5000, "cache.window"),
        ("memory_bytes = 0x" + "f" * 5000, "cache.memory_bytes"),
        ("seed = 2020-01-01", "cache.seed"),
        ("max_epoch_s = -0.5", "cache.max_epoch_s"),
        ("policy = " + "[" * 300 + "]" * 300, "cache.policy"),
        ('"two\\nlines" = 1', r"cache.'two\nlines'"),
    ],
)
def test_bad_cache_keys(tmp_path: Path, change: str, key: str) -> None:
    text = GOOD.replace('memory_bytes = "64MiB"', change)
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, text))
    assert caught.value.key == key
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


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
        ("[{type", "[{years = 1}, {type", "backend[1].layers[0].type"),
        ('"aging"', "3", "backend[1].layers[0].type"),
        ("layers = [{", "share = 2\nlayers = [{", "backend[0].share"),
        ("layers = [{", "service_ms = 2\nlayers = [{", "backend[0].service_ms"),
        ('url = "memory://"\nlayers', 'url = "/srv"\nlayers', "backend[1].url"),
        ('url = "memory://"\nlayers', 'url = "file://[x/"\nlayers', "backend[1].url"),
        ('url = "memory://"\nlayers', 'url = "file:///a%00b"\nlayers', "backend[1].url"),
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
    path.chmod(0o600)
    path.write_text("[cache]\nseed = = 3\n")
    with pytest.raises(ConfigError, match="line 2"):
        load(path)
    path.write_bytes(b"# one\n# \xff\n")
    with pytest.raises(ConfigError, match=r"not UTF-8 \(at line 2\)"):
        load(path)
    with pytest.raises(ConfigError, match="too many digits"):
        load(written(tmp_path, "[cache]\nseed = " + "9" * 5000))
    with pytest.raises(ConfigError, match="too deeply"):
        load(written(tmp_path, "x = " + "[" * 100_000))
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


LITERALS = (
    st.sampled_from(["true", "-1", "0", "7", "nan", "-inf", "1e999", "2.5", "2020-01-01"])
    | st.sampled_from(["1" + "0" * 400, "9" * 5000, "0x" + "f" * 400, "[[1]]", "[]", "{}"])
    | st.sampled_from(['""', '"7"', '"64KiB"', '"lru"', '"file://[x"', '"/a/../b"', '"x:y"'])
    | st.sampled_from(["[{}]", "[{type = 1}]", r'"\u0000"', r'"a\nb"', "", "= 1"])
    | st.text(max_size=8)
)
TABLES = {
    "[cache]": [item.name for item in fields(CacheConfig)],
    "[[backend]]": [item.name for item in fields(BackendConfig)],
    "[mount]": [item.name for item in fields(MountConfig)],
    "[metrics]": [item.name for item in fields(MetricsConfig)],
}
LINES = st.sampled_from(sorted(TABLES)).flatmap(
    lambda table: st.tuples(
        st.just(table),
        st.dictionaries(st.sampled_from([*TABLES[table], '"x\\ny"']), LITERALS, max_size=3),
    )
)


@settings(max_examples=300, deadline=None)
@given(st.lists(LINES, max_size=4), st.booleans())
def test_junk_toml_is_refused_with_a_config_error(
    tmp_path_factory: pytest.TempPathFactory, tables: list[tuple[str, dict[str, str]]], good: bool
) -> None:
    text = GOOD if good else ""
    for table, values in tables:
        text += table + "\n" + "".join(f"{key} = {value}\n" for key, value in values.items())
    path = tmp_path_factory.getbasetemp() / "junk.toml"
    path.write_bytes(text.encode())
    path.chmod(0o600)
    try:
        config = load(path)
    except ConfigError as exc:
        assert "\n" not in str(exc)
    else:
        Cache(**config.cache_arguments())  # what is accepted, the core takes


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"cache.window": "1.5"}, "cache.window"),
        ({"cache.threshold": "nan"}, "cache.threshold"),
        ({"cache.window": "9" * 5000}, "cache.window"),
        ({"mount.read_only": "yes"}, "mount.read_only"),
        ({"backend.at": "/x"}, "backend.at"),
        ({"cache": "x"}, "cache"),
    ],
)
def test_bad_overrides(tmp_path: Path, overrides: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(written(tmp_path, GOOD), overrides)
    assert caught.value.key == key


def test_overrides_are_plain_values(tmp_path: Path) -> None:
    overrides = {"cache.policy": "lru", "mount.read_only": "true", "mount.fsname": "x"}
    config = load(written(tmp_path, GOOD), overrides)
    assert config.mount.read_only is True
    assert type(config.cache.policy) is str
    assert type(config.mount.fsname) is str


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20, 5 << 30])
def test_sizes_round_trip(size: int) -> None:
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "-1", "1e9", "nan", "5 apples", "9" * 30, True, 1.5, None]
)
def test_bad_sizes(text: object) -> None:
    with pytest.raises(ValueError, match=r"size|range"):
        parse_size(text)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_good(tmp_path: Path, path: Path) -> None:
    config = load(written(tmp_path, path.read_text()))
    for index, backend in enumerate(config.backends):
        open_backend(backend.url, backend.layers, key=f"backend[{index}].url")


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3
