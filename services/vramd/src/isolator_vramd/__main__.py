import sys

from isolator_vramd.cli import main

sys.exit(main())
