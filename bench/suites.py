"""The outside suites on a real mount: fsx, fio --verify and pjdfstest. Fails if one of them does.

Installed by scripts/install-suites.sh. pjdfstest runs on the file store and must pass all of its
runnable cases.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from storagecache.compare import fresh_mount

PROGRAMS = Path(__file__).resolve().parent.parent / ".venv/suites/bin"
PJDFSTEST = """\
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
"""
CASES_MIN = 382
# what pyfuse3 cannot serve is not tested (docs/semantics.md)
FSX = "[weights]\npunch_hole = 0\nfallocate = 0\ncopy_file_range = 0\nposix_fallocate = 0\n"


def run(name: str, command: list[str], cwd: Path) -> bool:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {name}: {lines[-1] if lines else ''}")
    if done.returncode:
        print("\n".join(lines[-15:]))
    return done.returncode == 0


def main() -> int:
    good = True
    with tempfile.TemporaryDirectory(prefix="storagecache-suites-") as temporary:
        root = Path(temporary)
        (root / "store").mkdir()
        (root / "pj.toml").write_text(PJDFSTEST)
        (root / "fsx.toml").write_text(FSX)
        config = root / "c.toml"
        config.write_text(
            '[cache]\nmemory_bytes = "32MiB"\n'
            f'[[backend]]\nname = "file"\nat = "/file"\nurl = "file://{root}/store"\n'
            '[[backend]]\nname = "memory"\nat = "/memory"\nurl = "memory://"\n'
            "[mount]\nallow_other = true\n"
        )
        config.chmod(0o600)
        for kernel_cache in ("auto", "off"):
            settings = [f"mount.kernel_cache={kernel_cache}"]
            with fresh_mount(str(config), settings) as (mount, _):
                for store in ("file", "memory"):
                    base = mount / store
                    for seed in ("1", "2"):
                        weights = root / "fsx.toml"
                        if kernel_cache == "off":
                            weights = root / "fsx-nommap.toml"
                            weights.write_text(FSX + "mapread = 0\nmapwrite = 0\n")
                        command = [str(PROGRAMS / "fsx"), "-N", "20000", "-S", seed]
                        command += ["-f", str(weights), str(base / f"fsx{seed}")]
                        name = f"fsx -N 20000 -S {seed}, {store}, kernel cache {kernel_cache}"
                        good &= run(name, command, root)
                    fio = ["fio", "--name=v", f"--directory={base}", "--rw=randwrite", "--bs=4k"]
                    fio += ["--size=32m", "--verify=crc32c", "--fsync=256", "--fallocate=none"]
                    name = f"fio --verify, {store}, kernel cache {kernel_cache}"
                    good &= run(name, [*fio, "--output-format=terse", "--output=fio.out"], root)
                if kernel_cache == "auto":
                    good &= pjdfstest(root, mount / "file")
    return 0 if good else 1


def pjdfstest(root: Path, base: Path) -> bool:
    (base / "pj").mkdir()
    (base / "pj").chmod(0o777)
    command = [str(PROGRAMS / "pjdfstest"), "-c", str(root / "pj.toml"), "-p", str(base / "pj")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    found = re.search(r"(\d+) failed, (\d+) skipped, (\d+) passed", done.stdout)
    if found is None:
        print(f"FAIL pjdfstest: {done.stdout[-500:]}{done.stderr[-500:]}")
        return False
    good = found[1] == "0" and int(found[3]) >= CASES_MIN
    print(f"{'ok  ' if good else 'FAIL'} pjdfstest: {found[0]}")
    return good


if __name__ == "__main__":
    sys.exit(main())
