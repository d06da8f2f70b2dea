"""Custom resource definitions of other projects on the test cluster, as those projects publish them."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import yaml
from tests.cluster import modules
from tests.cluster.client import Cluster, wait_until

COLLECTION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@contextmanager
def served(cluster: Cluster, module: tuple[str, str], paths: Sequence[str]) -> Iterator[None]:
    """The definitions in these files of a Go module (its path and version), for the time of a block."""
    with ExitStack() as stack:
        for path in paths:
            definition = yaml.safe_load(modules.file(*module, path).read_text())
            # Of some they are those of a helm template.
            definition["metadata"].pop("labels", None)
            where = f"{COLLECTION}/{definition['metadata']['name']}"
            cluster.call("POST", COLLECTION, definition).ok()
            stack.callback(cluster.call, "DELETE", where)
            wait_until(functools.partial(_established, cluster, where), f"{where} to be served")
        yield


def _established(cluster: Cluster, where: str) -> bool:
    conditions = cluster.call("GET", where).ok().get("status", {}).get("conditions") or []
    return any(item["type"] == "Established" and item["status"] == "True" for item in conditions)
