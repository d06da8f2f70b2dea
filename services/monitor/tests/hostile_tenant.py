"""A tenant that does to its own region's directory whatever it can, as fast as it can.

`python hostile_tenant.py DIRECTORY VICTIM SECONDS`: prints how often. `VICTIM` is another tenant's region.
"""

import fcntl
import os
import random
import shutil
import stat
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from isolator_testing.regions import Card, RegionImage, Slot, Use

VALID = bytes(RegionImage([Card("GPU-00000000-0000-0000-0000-000000000001", 1 << 30)], {0: Slot(1, [Use(1)])}).v1())


def remove(path: Path) -> None:
    if path.is_symlink() or path.is_file() or path.is_fifo():
        path.unlink(missing_ok=True)
    elif path.is_dir():
        shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    directory, victim, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    cache, lock = directory / "usage.cache", directory / "usage.lock"
    chance = random.Random(7)

    def rewrite() -> None:
        # Opening a FIFO or a link to itself would stop the tenant, not the monitor.
        if not stat.S_ISREG(cache.lstat().st_mode):
            return
        with cache.open("r+b") as file:
            for _ in range(20):
                file.seek(chance.choice((0, 4, 8, 56, 64, 1600, 1896, 2_008_896, 2_011_136, 2_011_144)))
                file.write(struct.pack("<Q", chance.choice((0, 1, 17, 1025, (1 << 64) - 1, chance.getrandbits(64)))))

    def whole() -> None:
        remove(cache)
        cache.write_bytes(VALID)

    def truncate() -> None:
        if not stat.S_ISREG(cache.lstat().st_mode):
            return
        os.truncate(cache, chance.choice((0, 11, 1856, 1_197_896, 2_008_952, 3_203_071, 1 << 42)))

    def replace() -> None:
        (directory / "next").write_bytes(VALID)
        (directory / "next").rename(cache)

    def symlink() -> None:
        remove(cache)
        cache.symlink_to(chance.choice((victim / "usage.cache", Path("/etc/passwd"), Path("/dev/zero"), cache)))

    def fifo() -> None:
        remove(cache)
        os.mkfifo(cache)

    def folder() -> None:
        remove(cache)
        cache.mkdir()

    def hard_link() -> None:
        # Of another tenant's file only where both have the same mount, which is upstream's layout and not ours.
        remove(cache)
        (directory / "linked").write_bytes(VALID)
        cache.hardlink_to(directory / "linked")

    def swap() -> None:
        moved = directory.with_name("moved")
        directory.rename(moved)
        directory.symlink_to(victim)
        directory.unlink()
        moved.rename(directory)

    def locks() -> None:
        remove(lock)
        lock.touch()
        with lock.open("w") as file:
            for index in range(0, 1024, 2):
                fcntl.lockf(file, fcntl.LOCK_EX, 1, index)

    def names() -> None:
        for _ in range(50):
            (directory / f"{chance.getrandbits(64):x}_main").touch()

    actions = [rewrite, rewrite, whole, truncate, replace, symlink, fifo, folder, hard_link, swap, locks, names]
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with suppress(OSError):
            chance.choice(actions)()
        count += 1
    print(count)


if __name__ == "__main__":
    main()
