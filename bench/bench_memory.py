"""Memory and idle CPU of the daemon.

After reading 8 GiB and listing 100 000 files: resident memory above `memory_bytes` at most 60 MiB
plus 800 bytes per known inode; idle CPU under 1 %.

Last table (2 cores, 2026-11-21):

    memory above the budget (112 MiB, 100004 inodes): 0.83 of what is allowed
    idle CPU: 0.00
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from measure import folder, our_mount, report

READ_BYTES = 8 << 30
FILE_BYTES = 512 << 20
FILES = 100_000
MEMORY = 128 << 20
IDLE_S = 5.0


def resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("bench: no VmRSS")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    with folder() as root:
        store = root / "store"
        (store / "d").mkdir(parents=True)
        for number in range(FILES):
            (store / f"d/{number:06}").touch()
        with (store / "f").open("wb") as file:
            file.write(os.urandom(1 << 20))
            file.truncate(FILE_BYTES)
        with our_mount(root, store, memory=str(MEMORY)) as (ours, client):
            pid = client.call("status")["pid"]
            buffer = bytearray(1 << 20)
            left = READ_BYTES
            while left > 0:
                with (ours / "f").open("rb", buffering=0) as file:
                    while got := file.readinto(buffer):
                        left -= got
            listed = sum(1 for entry in os.scandir(ours / "d") if entry.stat().st_size == 0)
            if listed != FILES:
                raise SystemExit(f"bench: {listed} files listed")
            status = client.call("status")
            inodes = status["filesystem"]["inodes"]
            above = resident(pid) - MEMORY
            allowed = (60 << 20) + 800 * inodes
            before = cpu_s(pid)
            time.sleep(IDLE_S)  # this is what is measured
            idle = (cpu_s(pid) - before) / IDLE_S
    name = f"memory above the budget ({above / (1 << 20):.0f} MiB, {inodes} inodes)"
    good = report(f"{name} over what is allowed", above / allowed, 1, at_least=False)
    good &= report("idle CPU", idle, 0.01, at_least=False)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
