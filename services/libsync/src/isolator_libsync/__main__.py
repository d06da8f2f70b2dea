import sys

from isolator_libsync.cli import main

sys.exit(main())
