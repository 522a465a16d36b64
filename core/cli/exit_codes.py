"""How commands end, beside 0 for done and 2 for wrong usage, which is argparse's."""

FAILED = 1
INTERRUPTED = 130
PIPE_CLOSED = 141
"""The last two are what a shell reports for a program that SIGINT or SIGPIPE ended."""
