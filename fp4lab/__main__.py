"""`python -m fp4lab` is the command `fp4lab`."""

import sys

from fp4lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
