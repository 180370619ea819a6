"""Says what cannot act in a comparison: equal sides, and variables that nothing reads."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hvdb.judge import sides
from hvdb.judge.sides import BothSides
from hvdb.read.runs import OPERATIONS, Run

# Variables that act although hvd_bench may not record them: those of the dynamic linker and the shell act on any
# program, and HVD_MPI names the MPI library.
_UNRECORDED = re.compile(r"LD_\w+|PATH|HOME|TMPDIR|LANG|LC_\w+|MALLOC_\w+|GLIBC_TUNABLES|HVD_MPI")
# Variables that may bring another MPI library.
_LIBRARIES = ("HVD_MPI", "LD_LIBRARY_PATH", "LD_PRELOAD")
# Variables that choose how an MPI library reduces. They act where hvd_bench calls MPI's own reduction. Sources: the
# manuals of Open MPI (coll components), HCOLL, UCC, Intel MPI, MPICH and MVAPICH.
_MPI_COLLECTIVES = re.compile(r"OMPI_MCA_coll\w*|HCOLL_\w+|UCC_\w+|I_MPI_ADJUST_\w+|MPIR_CVAR_\w+|MV2_\w+")


def notes(cells: Sequence[BothSides], a: str, b: str) -> list[str]:
    """Returns a line for each thing that cannot act. cells: with a pair each. a, b: texts of the sides."""
    if a == b:
        return ["A and B are equal: what this shows is noise"]
    lines = []
    for name, text in (("a", a), ("b", b)):
        for variable in _variables(text):
            first = [(cell.name, (cell.a if name == "a" else cell.b)[0]) for cell in cells]
            if why := next(filter(None, (_idle(variable, run) for _, run in first)), None):
                lines.append(f"side {name}: {variable} {why}")
    if cells and not any(map(sides.differences, cells)):
        lines.append("A and B differ in nothing that the runs recorded")
    return lines


def _variables(text: str) -> list[str]:
    """Returns the variables that the text of a side sets. The text may come from a store."""
    try:
        words = shlex.split(text)
    except ValueError:
        return []
    names = []
    for word in words:
        if not (found := re.match(r"([A-Za-z_][A-Za-z0-9_]*)=", word)):
            break
        names.append(found[1])
    return names


def _idle(variable: str, run: Run) -> str | None:
    """Returns why a variable cannot act in `run`; None if it can, or if nobody knows."""
    planes = run.columns["data_plane"]
    if _MPI_COLLECTIVES.fullmatch(variable):
        if "mpi's own" in planes:
            return None
        return (
            f"chooses among MPI's reductions, and these runs reduce through '{planes}', not through MPI's: give the "
            "cell --algorithm mpi"
        )
    if variable in _LIBRARIES and run.unit == OPERATIONS and "mpi's own" not in planes:
        return f"brings no MPI library to these runs, which reduce through '{planes}': give the cell --algorithm mpi"
    if not _UNRECORDED.fullmatch(variable) and f"env.{variable}" not in run.provenance:
        return "is none that hvd_bench knows to be read by it or its libraries; is its name right?"
    return None
