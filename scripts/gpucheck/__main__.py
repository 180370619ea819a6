"""One command for a GPU host: checks, measures beside PyTorch, and leaves one folder (and a tar of it) to commit.

Needs no network and installs nothing. Each part has its time limit; one that fails or cannot run does not stop the
others. docs/gpu_check.md says how to bring it to a host.

Exit code: 0 every part ran and is good, 1 a part failed, 2 usage or output, 3 something did not run (no GPU, no time).
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import signal
import sys
import tarfile
import time
from dataclasses import asdict
from pathlib import Path

from . import host
from .parts import PARTS, REHEARSED, Part
from .place import Place, find_place
from .schedule import Outcome, Result, duration, exit_code, limit_of, plan, table
from .visit import ON_THE_CPU, ON_THE_GPU, CannotRun, PartFailed, Visit

ROOT = Path(__file__).resolve().parents[2]


def parse_arguments(parts: list[Part]) -> argparse.Namespace:
    """Exits with 2 on a wrong one, as argparse does."""
    listed = "\n".join(f"  {p.estimate.part:<11} about {p.estimate.seconds:>4.0f} s  {p.about}" for p in parts)
    parser = argparse.ArgumentParser(
        prog="gpu_check",
        description=__doc__,
        epilog=f"parts, in the order of their value:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", nargs="?", type=Path, help="where results go (default: gpu_check-HOST-DATE)")
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--minutes", type=float, help="plan the parts that fit, and end by then")
    parser.add_argument("--python", help="a Python that has PyTorch (default: the first that is found)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tests this command, not a GPU")
    parser.add_argument("--plan", action="store_true", help="print what would run, and stop")
    parser.add_argument(
        "--libraries", action="store_true", help="print an LD_LIBRARY_PATH with NVIDIA's libraries here"
    )
    options = parser.parse_args()
    known = {part.estimate.part for part in parts}
    if unknown := [name for name in options.parts if name not in known]:
        parser.error(f"no part '{unknown[0]}': the parts are {', '.join(sorted(known))}")
    if str(options.directory) in known:
        parser.error(f"'{options.directory}' is a part: name a directory before it")
    if options.minutes is not None and not options.minutes > 0:
        parser.error(f"--minutes: {options.minutes} is not above 0")
    return options


class Progress:
    """Lines with the time so far and the time that is left, by estimate."""

    def __init__(self, budget: float | None) -> None:
        self._begun = time.monotonic()
        self._budget = budget
        self.expected_end = 0.0

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begun

    def say(self, text: str) -> None:
        """One line, at once."""
        left = max(0.0, self.expected_end - self.elapsed())
        if self._budget is not None:
            left = min(left, max(0.0, self._budget - self.elapsed()))
        print(f"[{duration(self.elapsed()):>5}, about {duration(left)} left] {text}", flush=True)


def run_part(visit: Visit, part: Part, seconds: float) -> Outcome:
    """Never raises for what a part meets: that is its outcome."""
    begun = time.monotonic()
    visit.part, visit.part_ends = part.estimate.part, begun + seconds
    try:
        result, reason = Result.GOOD, part.run(visit)
    except PartFailed as error:
        result, reason = Result.FAILED, str(error)
    except CannotRun as error:
        result, reason = Result.CANNOT, str(error)
    except Exception as error:  # the others still run
        result, reason = Result.FAILED, f"{type(error).__name__}: {error}"
    took = time.monotonic() - begun
    if result is Result.FAILED and took >= seconds:
        reason = f"time limit of {seconds:.0f} s; {reason}"
    return Outcome(part.estimate.part, result, took, " ".join(reason.split()))


def run_parts(
    visit: Visit, parts: list[Part], budget: float | None, progress: Progress, outcomes: list[Outcome]
) -> None:
    """The parts that fit, in order, and a line for each that does not, added to `outcomes` one by one."""
    chosen = plan([part.estimate for part in parts], budget)
    for index, part in enumerate(parts):
        name = part.estimate.part
        rest = sum(p.estimate.seconds for p in parts[index:] if p.estimate.part in chosen)
        progress.expected_end = progress.elapsed() + rest
        seconds = limit_of(part.estimate, progress.elapsed(), budget) if name in chosen else 0.0
        if seconds <= 0:
            usual = f"it takes about {duration(part.estimate.seconds)}: give --minutes more, or name it alone"
            outcomes.append(Outcome(name, Result.NO_TIME, 0.0, usual))
            continue
        outcomes.append(run_part(visit, part, seconds))
        progress.say(f"{name}: {outcomes[-1].result.value}: {outcomes[-1].reason}")
        write_summary(visit.out, outcomes)  # after each: what comes later may be cut off


def write_summary(out: Path, outcomes: list[Outcome]) -> None:
    """summary.txt and summary.json."""
    (out / "summary.txt").write_text(table(outcomes), encoding="utf-8")
    rows = [{**asdict(outcome), "result": outcome.result.value} for outcome in outcomes]
    (out / "summary.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def write_machine(visit: Visit, options: argparse.Namespace) -> None:
    """machine.json: what was here, and what was asked for."""
    manifest = visit.place.root / "manifest.json"
    facts = {
        "started_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "arguments": sys.argv[1:],
        "device": options.device,
        "gpu": asdict(visit.gpu) if visit.gpu else None,
        "torch": visit.torch[1] if isinstance(visit.torch, tuple) else visit.torch,
        "bundle_commit": json.loads(manifest.read_text(encoding="utf-8"))["commit"] if manifest.exists() else None,
        **host.machine_facts(visit.folders),
    }
    (visit.out / "machine.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    if report := host.smi_report():
        (visit.out / "nvidia-smi.txt").write_text(report, encoding="utf-8")


def make_visit(place: Place, out: Path, options: argparse.Namespace, gpu: host.Gpu | None, progress: Progress) -> Visit:
    """Looks around on the host."""
    torch = host.find_torch(options.python)
    pythons = [torch[0]] if isinstance(torch, tuple) else [sys.executable]
    folders = host.library_folders(pythons) if options.device == "cuda" else []
    return Visit(
        place=place,
        out=out,
        sizes=ON_THE_GPU if options.device == "cuda" else ON_THE_CPU,
        gpu=gpu,
        torch=torch,
        folders=folders,
        sanitizer=host.find_sanitizer(pythons),
        say=progress.say,
    )


def archive(out: Path) -> Path:
    """A tar of the folder, beside it."""
    target = out.with_name(out.name + ".tar.gz")
    with tarfile.open(target, "w:gz") as tar:
        tar.add(out, out.name)
    return target


def check(options: argparse.Namespace, place: Place, parts: list[Part]) -> int:
    """The visit itself."""
    gpu = host.find_gpu() if options.device == "cuda" else None
    if isinstance(gpu, str):
        print(f"gpu_check: no GPU: {gpu}; nothing was run", file=sys.stderr)
        return 3
    budget = 60 * options.minutes if options.minutes else None
    progress = Progress(budget)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    out = (options.directory or Path(f"gpu_check-{platform.node()}-{stamp}")).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        print(f"gpu_check: {out} is not empty: name a new directory", file=sys.stderr)
        return 2
    visit = make_visit(place, out, options, gpu, progress)
    write_machine(visit, options)
    progress.expected_end = sum(part.estimate.seconds for part in parts)
    progress.say(f"{gpu.name if gpu else 'no GPU: this tests the command alone'}, results in {out}")
    outcomes: list[Outcome] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a scheduler's end is like a user's: keep what there is
    try:
        run_parts(visit, parts, budget, progress, outcomes)
    except KeyboardInterrupt:
        outcomes.append(Outcome(visit.part or "start", Result.FAILED, 0.0, "interrupted; nothing was run after it"))
    write_summary(out, outcomes)
    print("\n" + table(outcomes), end="")
    print(f"{archive(out)}: what to take home (docs/gpu_check.md)")
    return exit_code(outcomes)


def main() -> int:
    """The command line."""
    known = [*PARTS, REHEARSED]
    options = parse_arguments(known)
    if options.libraries:
        torch = host.find_torch(options.python)
        print(":".join(host.library_folders([torch[0]] if isinstance(torch, tuple) else [sys.executable])))
        return 0
    parts = [part for part in known if part.estimate.part in options.parts] if options.parts else list(PARTS)
    if options.device == "cpu" and not options.parts:
        parts.append(REHEARSED)
    if options.plan:
        for name in plan([part.estimate for part in parts], 60 * options.minutes if options.minutes else None):
            print(name)
        return 0
    place = find_place(ROOT)
    if place is None:
        print(f"gpu_check: no programs in {ROOT}: run scripts/build, or unpack the bundle", file=sys.stderr)
        return 2
    try:
        return check(options, place, parts)
    except OSError as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
