"""Measures hvd_bench beside other libraries, in turns: docs/peers.md.

peers collectives ...   the engine's collectives beside those of MPIs, oneCCL and Gloo
peers torch ...         training steps on processors beside PyTorch's
peers torch-gpu ...     training steps on a GPU beside PyTorch's
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hvdb.base import edge
from hvdb.base.errors import EXIT_GOOD, EXIT_USAGE


def main(words: Sequence[str]) -> int:
    """Runs the command line. Returns the exit code."""
    command, *rest = words or [""]
    if command == "collectives":
        from . import collectives  # needs numpy, which a GPU host may lack

        options = collectives.parser().parse_args(rest)
        return edge.run("peers", lambda: collectives.run(options))
    if command in ("torch", "torch-gpu"):
        from . import torch_peers

        trained = torch_peers.parse(command, rest)
        return edge.run("peers", lambda: torch_peers.run(trained))
    asked = command in ("-h", "--help")
    print(__doc__, file=sys.stdout if asked else sys.stderr)
    return EXIT_GOOD if asked else EXIT_USAGE


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
