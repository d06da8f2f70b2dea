"""Tells the basis: MiB of memory of the smallest GPU that a pod can land on."""
