"""Log lines of one turn of the event loop, written with one system call."""

import asyncio
from typing import TextIO


class BatchedFile:
    """A file for a logger that is called thousands of times a second: what one turn writes goes out at its end."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines: list[str] = []

    def write(self, text: str) -> int:
        """Keep the text until the turn ends."""
        if not self._lines:
            asyncio.get_running_loop().call_soon(self.write_out)
        self._lines.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing yet: `write_out` comes at the end of the turn."""

    def write_out(self) -> None:
        """Write what is kept."""
        text = "".join(self._lines)
        self._lines.clear()
        self._file.write(text)
        self._file.flush()
