"""OCI images made of directories, and those that buildah made, in a layout from which a registry serves them.

https://github.com/opencontainers/image-spec: image-layout.md, manifest.md, config.md.
"""

import gzip
import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Layout:
    """An OCI layout: blobs by digest, and an index that names manifests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)

    def blob(self, digest: str) -> Path:
        """File of a blob, there or not. Raises ValueError for what is no digest."""
        algorithm, _, hexadecimal = digest.partition(":")
        if algorithm != "sha256" or len(hexadecimal) != 64 or not hexadecimal.isalnum():
            raise ValueError(f"digest {digest!r}: expected sha256 and 64 hexadecimal digits")
        return self.directory / "blobs" / algorithm / hexadecimal

    def named(self, name: str) -> dict[str, Any]:
        """Descriptor of what the index calls `name`. Raises KeyError."""
        index = json.loads((self.directory / "index.json").read_text())
        for descriptor in index["manifests"]:
            if descriptor.get("annotations", {}).get("org.opencontainers.image.ref.name") == name:
                return dict(descriptor)
        raise KeyError(name)

    def add(self, content: bytes) -> dict[str, Any]:
        """Keep a blob. Returns what a descriptor says of it."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blob(digest).write_bytes(content)
        return {"digest": digest, "size": len(content)}

    def name(self, name: str, descriptor: Mapping[str, Any]) -> None:
        """Call a manifest `name` in the index."""
        (self.directory / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        index = self.directory / "index.json"
        manifests = json.loads(index.read_text())["manifests"] if index.exists() else []
        manifests.append({**descriptor, "annotations": {"org.opencontainers.image.ref.name": name}})
        index.write_text(json.dumps({"schemaVersion": 2, "manifests": manifests}))


def _archived(directory: Path) -> bytes:
    command = ["tar", "--create", "--numeric-owner", "--sort=name", "--directory", str(directory), "."]
    return subprocess.run(command, check=True, capture_output=True).stdout


def make_image(
    layout: Layout, name: str, layers: Sequence[Path], entrypoint: Sequence[str], environment: Mapping[str, str]
) -> None:
    """An image for this machine with a layer of each directory or tar file."""
    described, unpacked = [], []
    for layer in layers:
        content = _archived(layer) if layer.is_dir() else layer.read_bytes()
        unpacked.append(f"sha256:{hashlib.sha256(content).hexdigest()}")
        described.append({"mediaType": LAYER, **layout.add(gzip.compress(content, 1))})
    config = {
        "architecture": ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": [f"{key}={value}" for key, value in environment.items()]},
        "rootfs": {"type": "layers", "diff_ids": unpacked},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, **layout.add(json.dumps(config).encode())},
        "layers": described,
    }
    layout.name(name, {"mediaType": MANIFEST, **layout.add(json.dumps(manifest).encode())})


def take_from_buildah(layout: Layout, name: str, image: str) -> None:
    """Copy an image, for every machine that it is for, out of buildah's storage."""
    if (layout.directory / "index.json").exists():
        raise ValueError(f"{layout.directory} has images already, which buildah would drop")
    command = ["buildah", "manifest", "push", "--all", "--quiet", image, f"oci:{layout.directory}:{name}"]
    subprocess.run(command, check=True, capture_output=True)


def own_storage(directory: Path) -> dict[str, str]:
    """Environment that gives buildah a storage below `directory`, so that nothing of it stays on this machine."""
    config = directory / "storage.conf"
    config.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{directory}/graph"\nrunroot = "{directory}/run"\n')
    return {"CONTAINERS_STORAGE_CONF": str(config)}


def copy_program(source: Path, target: Path) -> None:
    """Put a program into what becomes a layer."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    target.chmod(0o755)
