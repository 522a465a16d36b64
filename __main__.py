"""`python -m switchgear`, the same as the command `switchgear`."""

import sys

from .core.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
