"""Real mounts, real kernel: what programs do on them, and what is left afterwards."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import random
import signal
import socket
import sqlite3
import stat as st
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from storagecache.control import socket_path
from storagecache.mount import mount_device

from .conftest import Mount, mounted

pytestmark = pytest.mark.mount
STORES = ("one", "below/two")


def run(*command: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def command(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "storagecache", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tree_above_the_stores(mount: Mount) -> None:
    assert sorted(os.listdir(mount.path)) == ["below", "one"]
    assert os.listdir(mount.path / "below") == ["two"]
    for call in (
        lambda: os.mkdir(mount.path / "new"),
        lambda: (mount.path / "below/x").write_bytes(b""),
        lambda: os.rmdir(mount.path / "below"),
    ):
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno in (errno.EROFS, errno.EBUSY)
    with pytest.raises(OSError) as caught:
        os.rmdir(mount.path / "one")
    assert caught.value.errno == errno.EBUSY
    (mount.path / "one/f").write_bytes(b"x")
    for call in (os.rename, os.link):
        with pytest.raises(OSError) as caught:
            call(mount.path / "one/f", mount.path / "below/two/f")
        assert caught.value.errno == errno.EXDEV


@pytest.mark.parametrize("store", STORES)
def test_files_and_names(mount: Mount, store: str) -> None:
    base = mount.path / store
    path = base / "f"
    path.write_bytes(b"0123456789")
    with path.open("ab") as file:
        file.write(b"abc")
    assert path.read_bytes() == b"0123456789abc"
    os.truncate(path, 5)
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(b"far")
        os.fsync(file.fileno())
    assert path.read_bytes() == b"01234" + bytes(99_995) + b"far"
    os.link(path, base / "hard")
    assert path.stat().st_ino == (base / "hard").stat().st_ino
    assert path.stat().st_nlink == 2
    path.unlink()
    assert (base / "hard").stat().st_nlink == 1
    os.symlink("hard", base / "sym")
    assert (base / "sym").read_bytes()[-3:] == b"far"
    os.utime(base / "hard", ns=(1_000_000_001, 1_600_000_000_123_456_789))
    assert (base / "hard").stat().st_mtime_ns == 1_600_000_000_123_456_789
    os.mkfifo(base / "fifo")
    assert st.S_ISFIFO((base / "fifo").stat().st_mode)
    os.setxattr(base / "hard", "user.k", b"v")
    assert os.getxattr(base / "hard", "user.k") == b"v"
    assert os.listxattr(base / "hard") == ["user.k"]
    os.removexattr(base / "hard", "user.k")
    with pytest.raises(OSError) as caught:
        (base / ("x" * 256)).touch()
    assert caught.value.errno == errno.ENAMETOOLONG
    assert os.statvfs(base).f_namemax == 255
    os.mkdir(base / "d")
    os.rename(base / "hard", base / "d/moved")
    assert sorted(os.listdir(base)) == ["d", "fifo", "sym"]
    descriptor = os.open(base / "d", os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("store", STORES)
def test_unlinked_but_open(mount: Mount, store: str) -> None:
    path = mount.path / store / "f"
    with path.open("w+b") as file:
        file.write(b"x" * 200_000)
        file.flush()
        path.unlink()
        assert os.fstat(file.fileno()).st_nlink == 0
        os.ftruncate(file.fileno(), 150_000)
        file.seek(0)
        assert file.read() == b"x" * 150_000
        path.write_bytes(b"another")
        assert os.fstat(file.fileno()).st_size == 150_000
    assert path.read_bytes() == b"another"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize("store", STORES)
def test_new_nodes_belong_to_the_caller(mount: Mount, store: str) -> None:
    base = mount.path / store
    os.chmod(base, 0o777)
    script = "umask 027; cd $0 && mkdir d && : > f"
    subprocess.run(["/bin/sh", "-c", script, str(base)], user=65534, group=65534, check=True)
    for name, mode in (("d", 0o750), ("f", 0o640)):
        status = (base / name).stat()
        assert (status.st_uid, status.st_gid) == (65534, 65534)
        assert st.S_IMODE(status.st_mode) == mode
    denied = subprocess.run(
        ["/bin/cat", str(base / "f")], user=12345, group=12345, capture_output=True, check=False
    )
    assert b"Permission denied" in denied.stderr


@pytest.mark.parametrize("kernel_cache", ["auto", "off"])
@pytest.mark.parametrize("store", STORES)
def test_random_operations_equal_a_plain_file(
    tmp_path: Path, store: str, kernel_cache: str
) -> None:
    draw = random.Random(5)
    with mounted(
        tmp_path, memory="1MiB", page="8KiB", mount=f'kernel_cache = "{kernel_cache}"'
    ) as live:
        with (live.path / store / "f").open("w+b", buffering=0) as file:
            model = bytearray()
            for _ in range(1500):
                offset, size = draw.randrange(3 << 20), draw.randrange(1, 90_000)
                kind = draw.random()
                if kind < 0.35:
                    data = draw.randbytes(size)
                    os.pwrite(file.fileno(), data, offset)
                    model.extend(bytes(max(0, offset - len(model))))
                    model[offset : offset + size] = data
                elif kind < 0.4:
                    os.ftruncate(file.fileno(), offset)
                    del model[offset:]
                    model.extend(bytes(offset - len(model)))
                else:
                    assert os.pread(file.fileno(), size, offset) == model[offset : offset + size]
            assert os.fstat(file.fileno()).st_size == len(model)
        status = live.status()
        assert status["cache"]["used_bytes"] <= status["cache"]["capacity_bytes"]
        assert sum(part["evictions"] for part in status["backends"].values()) > 0


def test_shared_mmap(mount: Mount) -> None:
    path = mount.path / "one/f"
    path.write_bytes(bytes(300_000))
    # in a process of its own: a page fault must not hold this one's interpreter lock
    script = (
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0)\n"
        "m[100_000:100_005] = b'mmap!'; m.flush(); m.close()"
    )
    run(sys.executable, "-c", script, path)
    assert mmap.PAGESIZE == 4096
    assert path.read_bytes()[100_000:100_005] == b"mmap!"


def test_close_to_open(mount: Mount, tmp_path: Path) -> None:
    behind = tmp_path / "one/f"
    path = mount.path / "one/f"
    for round_number in range(5):
        contents = bytes([round_number]) * (100_000 + round_number)
        behind.write_bytes(contents)
        assert path.read_bytes() == contents
    behind.unlink()
    with pytest.raises(FileNotFoundError):
        path.open()


def test_a_file_cut_behind_the_mount_reads_to_its_new_end(tmp_path: Path) -> None:
    with mounted(tmp_path, mount='kernel_cache = "off"') as live:
        (tmp_path / "one/f").write_bytes(b"x" * 1_000_000)
        with (live.path / "one/f").open("rb", buffering=0) as file:
            assert file.read(10) == b"x" * 10
            os.truncate(tmp_path / "one/f", 600_000)
            assert os.pread(file.fileno(), 200_000, 590_000) in (b"x" * 10_000, b"x" * 10_000)


def test_large_directory_and_rewind(mount: Mount, tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / "one" / f"{number:05}").touch()
    with os.scandir(mount.path / "one") as entries:
        names = [entry.name for entry in entries]
    assert sorted(names) == [f"{number:05}" for number in range(3000)]
    assert len(os.listdir(mount.path / "one")) == 3000
    for name in names[::2]:
        (mount.path / "one" / name).unlink()
    assert sorted(os.listdir(mount.path / "one")) == sorted(names[1::2])
    run("rm", "-rf", mount.path / "one" / "00001")


def test_one_fetch_for_many_readers(tmp_path: Path) -> None:
    throttle = 'layers = [{type = "throttle", latency_s = 0.2}]'
    with mounted(
        tmp_path, one=throttle, cache="readahead_bytes = 0", mount='kernel_cache = "off"'
    ) as live:
        (tmp_path / "one/f").write_bytes(b"y" * 60_000)
        results: list[bytes] = []
        files = [(live.path / "one/f").open("rb", buffering=0) for _ in range(8)]
        threads = [
            threading.Thread(target=lambda f=file: results.append(f.read(60_000))) for file in files
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for file in files:
            file.close()
        assert results == [b"y" * 60_000] * 8
        part = live.status()["backends"]["one"]
        assert (part["demand_requests"], part["misses"]) == (1, 1)


def test_readahead_makes_the_misses_of_a_stream_few(tmp_path: Path) -> None:
    with mounted(tmp_path, mount='kernel_cache = "off"') as live:
        (tmp_path / "one/f").write_bytes(random.Random(1).randbytes(8 << 20))
        with (live.path / "one/f").open("rb", buffering=0) as file:
            contents = b"".join(iter(lambda: file.read(65536), b""))
        assert contents == (tmp_path / "one/f").read_bytes()
        part = live.settled()["backends"]["one"]
        assert part["hits"] + part["misses"] == 128
        assert part["misses"] < 16


@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "ESTALE"])
def test_a_failing_backend_fails_its_own_callers_only(tmp_path: Path, code: str) -> None:
    with mounted(tmp_path, one='layers = [{type = "fault"}]') as live:
        (live.path / "one/f").write_bytes(b"x" * 100_000)
        live.client.call(
            "layer",
            backend="one",
            layer="fault",
            arguments={"error_probability": 1.0, "errno": code},
        )
        with pytest.raises(OSError) as caught:
            (live.path / "one/g").write_bytes(b"y")
        assert caught.value.errno == getattr(errno, code)
        (live.path / "below/two/f").write_bytes(b"fine")
        assert (live.path / "below/two/f").read_bytes() == b"fine"
        live.client.call("layer", backend="one", layer="fault", arguments={"clear": True})
        assert (live.path / "one/f").read_bytes() == b"x" * 100_000
        errors = live.status()["backends"]["one"]["errors"]
        assert any(key.endswith(code) for key in errors)


def test_a_hung_backend_ends_at_its_deadline_and_others_go_on(tmp_path: Path) -> None:
    limits = 'timeout_metadata_s = 0.5\ntimeout_data_s = 0.5\nlayers = [{type = "fault"}]'
    with mounted(tmp_path, one=limits, mount='kernel_cache = "off"') as live:
        (live.path / "one/f").write_bytes(b"x" * 300_000)
        with (live.path / "one/f").open("rb", buffering=0) as file:
            live.client.call("layer", backend="one", layer="fault", arguments={"hang": True})
            live.client.call("policy", name="none")
            live.client.call("policy", name="lru")
            with pytest.raises(OSError) as caught:
                os.pread(file.fileno(), 10, 200_000)
            assert caught.value.errno == errno.ETIMEDOUT
            assert sorted(os.listdir(live.path)) == ["below", "one"]
            (live.path / "below/two/f").write_bytes(b"fine")
            live.client.call("layer", backend="one", layer="fault", arguments={"clear": True})
            assert os.pread(file.fileno(), 10, 200_000) == b"x" * 10


def test_control_changes_a_running_mount(tmp_path: Path) -> None:
    with mounted(tmp_path, one='layers = [{type = "aging", years = 1, time_scale = 1000}]') as live:
        (live.path / "one/f").write_bytes(b"x" * 100_000)
        assert live.client.call("policy", name="eager-lru") == "eager-lru"
        assert live.client.call("resize", memory_bytes=8 << 20) == 8 << 20
        aged = live.client.call("layer", backend="one", layer="aging", arguments={"years": 4.5})
        assert aged["years"] == 4.5
        pages = live.status()["cache"]["capacity_pages"]
        live.client.call("repartition", targets={"one": pages - 5, "two": 5})
        assert live.status()["backends"]["two"]["target_pages"] == 5
        live.client.call("repartition", mode="none")
        assert live.status()["cache"]["repartition"] == "none"
        assert (live.path / "one/f").read_bytes() == b"x" * 100_000
        for words in (
            ["policy", "x"],
            ["fault", "one", "hang=true"],
            ["age", "three", "1"],
            ["resize", "much"],
            ["repartition", "--targets", "one=1"],
        ):
            done = command("ctl", live.path, *words)
            assert done.returncode == 2, done
            assert len(done.stderr.strip().splitlines()) == 1
            assert "Traceback" not in done.stderr


def test_metrics(tmp_path: Path) -> None:
    with mounted(tmp_path, mount='[metrics]\nlisten = "127.0.0.1:0"') as live:
        (live.path / "one/f").write_bytes(b"x" * 100_000)
        port = live.status()["metrics_port"]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    for name in (
        "partition_pages",
        "partition_target_pages",
        "partition_state",
        "page_hits_total",
        "page_misses_total",
        "evictions_total",
        "backend_response_seconds_total",
        "backend_busy_seconds_total",
        "backend_request_seconds_bucket",
        "repartition_epochs_total",
        "relative_wait_ratio",
        "cache_capacity_bytes",
        "cache_used_bytes",
        "dirty_bytes",
        "oldest_dirty_age_seconds",
        "fuse_request_seconds_bucket",
    ):
        assert f"\nstoragecache_{name}" in text, name
    assert 'storagecache_partition_pages{backend="one"} 1.0' in text


def test_git_make_and_sqlite(mount: Mount, tmp_path: Path) -> None:
    source = tmp_path / "repository"
    run("git", "init", "-q", source)
    (source / "main.c").write_text(
        '#include <stdio.h>\nint main(void) { return puts("hi") < 0; }\n'
    )
    (source / "Makefile").write_text("main: main.o\n\tcc -o main main.o\n")
    run("git", "-C", source, "add", ".")
    run("git", "-C", source, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")
    for store in STORES:
        clone = mount.path / store / "clone"
        run("git", "clone", "-q", "--no-local", source, clone)
        run("git", "-C", clone, "fsck", "--strict")
        run("make", "-s", cwd=clone)
        assert run(clone / "main") == "hi\n"
        for mode in ("DELETE", "WAL"):
            database = mount.path / store / f"{mode}.db"
            connection = sqlite3.connect(database)
            assert connection.execute(f"PRAGMA journal_mode={mode}").fetchone()[0] == mode.lower()
            connection.execute("CREATE TABLE t (x)")
            connection.close()
            writer = (
                "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], timeout=60)\n"
                "for i in range(40):\n    c.execute('INSERT INTO t VALUES (?)', (i,)); c.commit()"
            )
            writers = [
                subprocess.Popen([sys.executable, "-c", writer, str(database)]) for _ in range(2)
            ]
            assert [one.wait() for one in writers] == [0, 0]
            connection = sqlite3.connect(database)
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (80,)
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            connection.close()


def simple(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "store").mkdir()
    (tmp_path / "mnt").mkdir()
    config = tmp_path / "c.toml"
    config.write_text(f'[[backend]]\nname = "a"\nat = "/a"\nurl = "file://{tmp_path}/store"\n')
    config.chmod(0o600)
    return config, tmp_path / "mnt"


def test_daemon_umount_and_a_busy_mount(tmp_path: Path) -> None:
    config, directory = simple(tmp_path)
    done = command("mount", config, directory)
    assert (done.returncode, done.stderr) == (0, "")
    try:
        assert command("mount", config, directory).returncode == 2
        status = json.loads(command("status", directory, "--json").stdout)
        assert status["mountpoint"] == str(directory)
        assert st.S_IMODE(socket_path(str(directory)).stat().st_mode) == 0o600
        with (directory / "a/f").open("w") as file:
            file.write("x")
            busy = command("umount", directory)
            assert busy.returncode == 1
            assert "busy" in busy.stderr
            assert (directory / "a/f").exists()
    finally:
        done = command("umount", directory)
    assert (done.returncode, done.stderr) == (0, "")
    with contextlib.suppress(FileNotFoundError):  # gone, or dead and not yet reaped by init
        assert ") Z " in Path(f"/proc/{status['pid']}/stat").read_text()
    assert mount_device(str(directory)) is None
    assert (tmp_path / "store/f").read_text() == "x"
    assert command("umount", directory).returncode == 1
    assert "no storagecache" in command("status", directory).stderr


def test_kill_9_then_umount_then_mount(tmp_path: Path) -> None:
    config, directory = simple(tmp_path)
    assert command("mount", config, directory).returncode == 0
    pid = json.loads(command("status", directory, "--json").stdout)["pid"]
    (directory / "a/f").write_text("kept")
    os.kill(pid, signal.SIGKILL)
    while True:  # the kernel aborts the connection when the process is gone
        try:
            (directory / "a/f").read_text()
        except OSError as exc:
            assert exc.errno in (errno.ENOTCONN, errno.ECONNABORTED)
            break
    assert command("umount", directory).returncode == 0
    assert mount_device(str(directory)) is None
    assert command("mount", config, directory).returncode == 0
    assert (directory / "a/f").read_text() == "kept"
    assert command("umount", directory).returncode == 0


def test_bad_input_mounts_nothing(tmp_path: Path) -> None:
    config, directory = simple(tmp_path)
    good = config.read_text()
    for text, key in (
        (good.replace("/store", "/none"), "backend[0].url (a)"),
        (good.replace("file://", "ftp://"), "backend[0].url"),
        ("[cache]\npolicy = 'x'\n" + good, "cache.policy"),
        (good + "layers = [{type = 'aging', years = -2}]\n", "backend[0].layers[0]: years"),
    ):
        config.write_text(text)
        for extra in ([], ["--foreground"]):
            done = command("mount", config, directory, *extra)
            assert done.returncode == 2, done
            assert done.stderr.startswith(f"storagecache: {key}"), done.stderr
            assert len(done.stderr.splitlines()) == 1
            assert mount_device(str(directory)) is None


def test_compare_tabulates(tmp_path: Path) -> None:
    config, _ = simple(tmp_path)
    (tmp_path / "store/f").write_bytes(bytes(1 << 20))
    timeline = tmp_path / "t.csv"
    done = command(
        "compare",
        config,
        "--policies",
        "lru,lazy-clock",
        "--json",
        "--timeline",
        timeline,
        "--plot",
        tmp_path / "p.png",
        "--",
        "cat",
        "a/f",
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout[done.stdout.index("[\n") :])
    assert [row["policy"] for row in rows] == ["lru", "lazy-clock"]
    assert all(row["backends"]["a"]["misses"] > 0 for row in rows)
    assert timeline.read_text().startswith("policy,time_s,epoch")
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    failed = command("compare", config, "--policies", "lru", "--", "false")
    assert failed.returncode == 1
    assert "exit status 1" in failed.stderr
    assert command("compare", config, "--policies", "lru,x", "--", "true").returncode == 2


def test_unix_sockets_work_on_the_mount(mount: Mount) -> None:
    path = mount.path / "below/two/s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert st.S_ISSOCK(path.stat().st_mode)
    path.unlink()
