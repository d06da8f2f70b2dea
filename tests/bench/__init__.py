"""Speed, each figure beside its budget and beside a baseline of the same run. `./dev run nox -s bench`."""
