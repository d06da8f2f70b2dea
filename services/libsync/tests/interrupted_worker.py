"""Runs commands of isolator-libsync in children that stop themselves first, so that strace can take hold of them.

A line on standard input is one command; its child's PID comes back, then its exit status. The imports are done once.
"""

import os
import signal
import sys

from isolator_core.settings import main
from isolator_libsync.cli import COMMANDS

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(main("isolator-libsync", "ISOLATOR_LIBSYNC_", "", COMMANDS, line.split()))
    os.waitpid(child, os.WUNTRACED)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
