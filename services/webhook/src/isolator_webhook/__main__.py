"""`python -m isolator_webhook`."""

import sys

from isolator_webhook.cli import main

sys.exit(main())
