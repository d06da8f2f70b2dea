"""`python -m isolator_monitor`."""

import sys

from isolator_monitor.cli import main

sys.exit(main())
