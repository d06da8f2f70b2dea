"""A container with cards for a test: the library, its limits and region, and programs that are preloaded with it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import sizeof
from dataclasses import dataclass
from pathlib import Path

from tests.fakegpu.machine import Machine

from isolator_core import names
from isolator_core.region import Kind, Process, Region, RegionError, extension, read_region

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "native/hami-core/build/libvgpu.so"
UID = "0c9e7a52-6d2f-4b7e-9a53-b7a35d0c1f11"
NAME = "main"
MIB = 1 << 20
SLOTS = 64
"""As many as any test here uses."""


@dataclass(frozen=True)
class Container:
    """The folder that a pod's containers see as /usr/local/vgpu, on a machine with cards."""

    machine: Machine
    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "libvgpu.so"

    @property
    def region_folder(self) -> Path:
        return self.folder / "containers" / f"{UID}_{NAME}"

    def limit(self, **request: str) -> None:
        """Give it another request, as the kubelet does: a new generation, swapped in at once."""
        limits = self.folder / "limits"
        generation = limits / f"..{len(list(limits.glob('..*')))}"
        generation.mkdir(parents=True)
        text = "".join(f"{key}={value}\n" for key, value in {"container": NAME, **request}.items())
        (generation / "request").write_text(text)
        (generation / "uid").write_text(UID)
        (limits / "..new").symlink_to(generation.name)
        (limits / "..new").rename(limits / "..data")

    def environment(self, **variables: str) -> dict[str, str]:
        """The environment of a program in it."""
        return self.machine.environment(LD_PRELOAD=str(self.library), **variables)

    def run(self, *command: str | Path, **variables: str) -> str:
        """What a program in it prints on standard output; raises AssertionError with its errors if it fails."""
        done = subprocess.run(
            command, env=self.environment(**variables), capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def _opened(self) -> Iterator[int]:
        directory = os.open(self.region_folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield directory
        finally:
            os.close(directory)

    def region(self) -> Region:
        """Its region, as the monitor reads it; again where a busy machine kept the reader waiting."""
        for _ in range(10):
            try:
                with self._opened() as directory:
                    return read_region(directory)
            except RegionError as error:
                if error.kind is not Kind.LOCKS:
                    raise
        raise AssertionError("the region's locks cannot be read in time")

    def slot(self, pid: int) -> Process | None:
        """What the region says of a process, or None if it is not attached."""
        return next((process for process in self.region().processes if process.host_pid == pid), None)

    def lanes(self, device: int = 0) -> dict[int, int]:
        """Bytes that each slot holds of a device, of the slots that hold any, whether or not their owners live."""
        held = {}
        with (self.region_folder / names.REGION_FILE).open("rb") as file:
            content = file.read(extension.BYTES + extension.OFFSET)
        block = extension.Block.from_buffer_copy(content, extension.OFFSET)
        for slot in range(SLOTS):
            lane = block.lanes[slot][device]
            if value := lane.value[lane.settled & 1]:
                held[slot] = int(value)
        return held

    def total(self, device: int = 0) -> int:
        """Bytes charged to the container on a device: the word that enforcement goes by."""
        with (self.region_folder / names.REGION_FILE).open("rb") as file:
            file.seek(extension.DEVICES_OFFSET + device * sizeof(extension.Device))
            record = extension.Device.from_buffer_copy(file.read(sizeof(extension.Device)))
        return int(record.total)


def make_container(machine: Machine, folder: Path, **request: str) -> Container:
    """A managed container with this request (`memory="4096m"`)."""
    container = Container(machine, folder)
    (folder / "containers").mkdir(parents=True)
    shutil.copyfile(LIBRARY, container.library)
    container.limit(**request)
    return container
