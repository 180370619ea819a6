"""The table of commands, and the parser of hvdb's own options. Uses only the standard library."""

from __future__ import annotations

import argparse
import importlib
from types import ModuleType

from hvdb import __version__

# Command -> its line in the help. The module of a command is hvdb.commands.<command>.
COMMANDS = {
    "efficiency": "how well training scales, with intervals, beside the published points",
    "ranks": "which rank or node of a stored run is slow",
    "gate": "did it get worse? two sides measured in pairs until that is known",
    "compare": "the same question about what has been recorded",
    "history": "the newest session against its series; where a series changed",
    "plot": "scaling, loss waterfall and per-layer profiles as figures",
    "collectives": "time and bandwidth of collective operations as figures",
    "predict": "step time and efficiency on ranks that were not measured, with a band",
    "merge": "several stores, and what killed jobs left, into one",
    "report": "stores as one HTML file, or as a Markdown page",
    "export": "the newest runs for Prometheus, all runs as lines of JSON for a log",
    "rerun": "how a stored run was made; the same run again, compared",
    "reproduce": "a published claim, held against what was measured",
    "campaign": "scaling studies on Slurm, LSF or one machine, resumed until done",
    "completion": "completion of all this for bash, zsh or tcsh",
}


def module(command: str) -> ModuleType:
    """Imports hvdb.commands.<command>. Errors: ModuleNotFoundError if a package that the command needs is missing."""
    return importlib.import_module(f"hvdb.commands.{command}")


def parser() -> argparse.ArgumentParser:
    """Returns the parser of hvdb's own options, --help and --version. It does not know the options of the commands."""
    made = argparse.ArgumentParser(
        prog="hvdb",
        usage="hvdb [--help] [--version] COMMAND ...",
        description="Reads the stores of hvd_bench, and runs the studies that fill them.",
        epilog="commands:\n"
        + "\n".join(f"  {command:<12} {text}" for command, text in COMMANDS.items())
        + "\n\nhvdb COMMAND --help explains one of them",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--version", action="version", version=f"hvdb {__version__}")
    return made
