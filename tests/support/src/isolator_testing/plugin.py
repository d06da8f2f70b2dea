"""What holds for every test, by pytest's entry point."""

import signal

# A shell that starts the tests in the background has them ignore SIGINT, and what they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
