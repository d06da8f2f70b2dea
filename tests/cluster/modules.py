"""Single files of public Go modules, fetched once by `go mod download`, which checks their checksums."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster import programs

KUBERNETES = ("1.28.15", "1.29.15", "1.30.14", "1.31.14", "1.32.13", "1.33.13", "1.34.4", "1.35.4", "1.36.3", "1.37.2")
"""A patch release of each minor version from the oldest that the charts are for to the newest."""

FETCH_SECONDS = 600
PROMETHEUS_OPERATOR = ("github.com/prometheus-operator/prometheus-operator", "v0.85.0")
CERT_MANAGER = ("github.com/cert-manager/cert-manager", "v1.21.2")


def openapi(kubernetes: str) -> Path:
    """The OpenAPI file of a Kubernetes version such as 1.34.4. Raises BuildError."""
    return file("k8s.io/kubernetes", f"v{kubernetes}", "api/openapi-spec/swagger.json")


def file(module: str, version: str, path: str) -> Path:
    """A file of a module's version, in the cache; the rest of the module is not kept. Raises BuildError."""
    target = programs.CACHE / "files" / f"{module.replace('/', '_')}@{version}" / path
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise programs.BuildError(f"{path} of {module} is missing and so is go: install Go 1.26 or later")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="isolator-module-") as name:
        environment = os.environ | {"GOMODCACHE": name, "GOFLAGS": "-modcacherw", "GOWORK": "off"}
        try:
            done = subprocess.run(
                ["go", "mod", "download", "-json", f"{module}@{version}"],
                cwd=name, env=environment, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise programs.BuildError(f"{module}@{version} is not fetched after {FETCH_SECONDS} s") from error
        if done.returncode != 0:
            raise programs.BuildError(f"fetching {module}@{version} failed:\n{done.stdout}{done.stderr}")
        new = Path(tempfile.mkdtemp(dir=target.parent)) / target.name
        shutil.copyfile(Path(json.loads(done.stdout)["Dir"]) / path, new)
        new.rename(target)
        new.parent.rmdir()
    return target
