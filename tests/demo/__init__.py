"""The demo: the pods of `examples/` through every part, on a fake GPU. `python -m tests.demo --help`."""
