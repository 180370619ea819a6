"""`python -m hvdb COMMAND ...`; see hvdb/cli.py."""

import sys

from hvdb.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
