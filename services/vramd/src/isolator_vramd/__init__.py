"""Tells the basis: MiB of memory of the smallest GPU that a pod can land on."""

import os

# Before gRPC is imported: it writes a line of its own form to standard error for every handshake that fails.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
