"""Generated from vram.proto by `nox -s proto`; do not edit."""
