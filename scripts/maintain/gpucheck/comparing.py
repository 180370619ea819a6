"""The parts that train beside PyTorch (scripts/maintain/peers/compare_gpu.py), and the verdict over all these parts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import commands, host
from .visit import CannotRun, CutShort, PartFailed, Visit

NO_TIME = "no time"  # compare_gpu.py uses these words in a reason if time ran out
VERDICT_SECONDS = 60.0
VERDICT = "verdict.txt"


@dataclass(frozen=True)
class Kind:
    """One way to compare a network in a type. Each network and type makes one part."""

    name: str
    about: str
    seconds: float
    limit: float
    variants: tuple[str, ...]  # variants of PyTorch
    compile_seconds: float  # time limit for a variant to start

    def part(self, dtype: str, model: str) -> str:
        """Returns the name of the part and of its files."""
        return f"{self.name}-{dtype}-{model}"


# Both sides use one batch size. 80 GB have room for both sides at this size. PyTorch uses the first variant that runs,
# and times ten algorithms per convolution, PyTorch's default.
QUICK_BATCH = 256
_ALGORITHMS = ("--benchmark-limit", "10")
_OPTIONS = (
    *("--first-variant-only", "--batches", str(QUICK_BATCH), *_ALGORITHMS),
    *"--turns 16 --turn-seconds 0.5 --search-seconds 0.5".split(),
)
# On an H200, a quick comparison takes 34 to 51 s after compile_ahead(). The time of max-autotune is a guess.
QUICK = Kind("quick", "beside torch.compile, batch 256", 45, 300, ("compile", "graph"), 180)
AUTOTUNE = Kind("autotune", "beside torch.compile, max-autotune, batch 256", 270, 400, ("autotune",), 300)
KINDS = (QUICK, AUTOTUNE)


def compile_ahead(visit: Visit, dtype: str, model: str, cache: Path, memory_bytes: float) -> bool:
    """Fills the compile cache of torch.compile for the quick comparison. Returns True if it completed. Any thread."""
    command = [visit.python(), str(visit.place.peers() / "gpu_torch.py"), "--model", model, "--dtype", dtype]
    command += ["--variant", "compile", "--batch", str(QUICK_BATCH), *_ALGORITHMS, "--compile-cache", str(cache)]
    if visit.gpu is not None:
        command += ["--memory-fraction", f"{min(1.0, memory_bytes / visit.gpu.memory_bytes):.3f}"]
    try:
        return visit.run(f"compiling/{dtype}-{model}", command, ours=False).code == 0
    except (PartFailed, CannotRun, OSError):  # compiling ahead only saves time
        return False


def comparison(kind: Kind, dtype: str, model: str) -> Callable[[Visit], str]:
    """Returns a part that compares the training speed with PyTorch's."""

    def run(visit: Visit) -> str:
        name = kind.part(dtype, model)
        file, partial = visit.out / f"{name}.json", visit.out / f"{name}.partial"
        clocks = visit.out / f"{name}.clocks.partial"
        command = [visit.python(), str(visit.place.peers() / "compare_gpu.py"), "--bench"]
        command += [visit.program("train_step_bench"), "--models", model, "--dtypes", dtype]
        command += ["--variants", *kind.variants, "--device", visit.sizes.device, "--seconds", f"{visit.left():.0f}"]
        command += ["--json", str(partial), "--log", str(visit.out / f"{name}.log"), *_OPTIONS]
        command += ["--compile-seconds", f"{kind.compile_seconds:.0f}", "--compile-cache", str(host.compile_cache())]
        if visit.store.exists():
            command += ["--store", str(visit.store)]
        if visit.sizes.tunes:
            command += ["--winners", str(visit.winners)]
        if visit.sizes.device == "cuda":
            command += ["--clocks", str(clocks)]
        # PyTorch finds its libraries by itself. Our program needs the library path.
        command += ["--library-path", visit.environment.get("LD_LIBRARY_PATH", ""), *visit.sizes.comparison]
        partial.unlink(missing_ok=True)
        before = host.gpu_state()
        done = visit.run(name, command, ours=False)
        visit.note(f"{name}: {before} | {host.gpu_state()}")
        row = _row(partial)
        if row and (row["best"] or not file.exists()):  # a failed comparison does not replace a result
            partial.replace(file)
            if clocks.exists():
                clocks.replace(visit.out / f"{name}.clocks.csv")
        return _said(done, row, visit.shortened)

    return run


def _row(file: Path) -> dict | None:
    """Returns the only row of a comparison; None if the comparison did not write one."""
    try:
        (row,) = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return row


def _said(done: commands.Done, row: dict | None, shortened: bool) -> str:
    """Returns the result as text. Errors: PartFailed with the reason, CannotRun if PyTorch did not run, CutShort."""
    missing = "; ".join(row["missing_variants"]) if row else ""
    if done.code not in (0, 3) or row is None:
        raise PartFailed("; ".join(row["troubles"]) if row and row["troubles"] else done.last_line())
    stops = [found["stopped"] for found in [*row["variants"], row["ours_search"]] if found]
    if shortened and (short := [text for text in stops if NO_TIME in text]):
        raise CutShort("; ".join(short))
    if row["best"] is None:
        raise CannotRun(missing)
    ratio = row["best"]["ratio"]
    interval = "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
    note = f" ({missing})" if missing else ""
    return f"{ratio['ratio']:.2f} x{interval} beside {row['best']['peer']['name']}{note}"


def write_verdict(visit: Visit) -> str:
    """Writes verdict.txt: all comparisons in the folder, their bounds, and the verdicts. Returns the file's text, or ""
    if there is no comparison."""
    files = [str(file) for kind in KINDS for file in sorted(visit.out.glob(f"{kind.name}-*.json"))]
    if not files:
        return ""
    command = [sys.executable, str(visit.place.peers() / "compare_gpu.py"), "--report", *files]
    command += ["--models", *visit.sizes.models, "--dtypes", *visit.sizes.dtypes]
    if visit.store.exists():
        command += ["--store", str(visit.store)]
    (visit.out / VERDICT).unlink(missing_ok=True)
    return commands.run(command, visit.out / VERDICT, VERDICT_SECONDS, None, visit.place.root).output
