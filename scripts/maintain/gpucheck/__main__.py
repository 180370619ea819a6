"""One command for a GPU host: checks, measures beside PyTorch, and leaves one folder (and a tar of it) to commit.

Needs no network and installs nothing. Each part has its time limit. A part that fails or cannot run does not stop the
other parts. Finished parts are kept, whatever ends the call. A later call with the same folder goes on where the last
call stopped. docs/gpu_check.md says how to bring gpu_check to a host.

Exit code: 0 every part ran and is good, 1 a part failed, 2 usage or output, 3 something did not run (no GPU, no time),
7 interrupted before or after the parts.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import json
import os
import platform
import signal
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path

from . import host
from .comparing import write_verdict
from .ledger import Ledger
from .parts import CALL_MINUTES, CALLS, Part, parts_for, parts_of_call, visit_text
from .place import Place, find_place
from .runner import Progress, run_parts
from .schedule import Result, duration, exit_code, plan, to_do
from .visit import ON_THE_CPU, ON_THE_GPU, Visit
from hvdb import whole_file

ROOT = Path(__file__).resolve().parents[3]
MACHINE = "machine.json"
WINNERS = "*.winners"  # NETWORK-TYPE-CUDNN-GPU; programs ignore files of another cuDNN or GPU
MOST_MINUTES = 1e6


def parse_arguments() -> tuple[argparse.Namespace, list[Part]]:
    """Returns the options and the requested parts. Exits with 2 on a wrong argument, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="gpu_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", nargs="?", type=Path, help="where results go (default: gpu_check-HOST-DATE)")
    parser.add_argument("parts", nargs="*", metavar="PART", help="also a pattern: 'quick-fp16-*' (default: all)")
    parser.add_argument(
        "--call", type=int, choices=CALLS, help="this call of a visit of three, and what earlier ones lack"
    )
    parser.add_argument("--minutes", type=float, help="take the parts that fit, and end by then (with --call: 9)")
    parser.add_argument("--again", action="store_true", help="also the parts that are finished in that directory")
    parser.add_argument("--list", action="store_true", help="print the parts with their estimates, and stop")
    parser.add_argument("--plan", action="store_true", help="print the visit call by call, and stop")
    parser.add_argument("--nccl", type=Path, help="NCCL 2.30 or newer: a folder with libnccl.so.2, or a wheel")
    parser.add_argument("--winners", type=Path, metavar="FOLDER", help="winners/ of an earlier visit, to tune less")
    parser.add_argument("--python", help="a Python that has PyTorch (default: the first that is found)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: tests this command, not a GPU")
    parser.add_argument(
        "--libraries", action="store_true", help="print an LD_LIBRARY_PATH with NVIDIA's libraries here"
    )
    options = parser.parse_intermixed_args()  # so that options may come between the directory and the parts
    known = parts_for(ON_THE_GPU if options.device == "cuda" else ON_THE_CPU)
    names = [part.estimate.part for part in known]
    for pattern in options.parts:
        if not fnmatch.filter(names, pattern):
            parser.error(f"no part '{pattern}': --list prints them")
    if str(options.directory) in names:
        parser.error(f"'{options.directory}' is a part: name a directory before it")
    if options.minutes is not None and not 0 < options.minutes <= MOST_MINUTES:
        parser.error(f"--minutes: {options.minutes} is not above 0 and finite; leave it out to set no bound")
    if options.winners and not any(options.winners.glob(WINNERS)):
        parser.error(f"--winners: there is no {options.winners / WINNERS}: name the folder winners of an earlier visit")
    if options.nccl and not options.nccl.exists():
        parser.error(f"--nccl: there is no {options.nccl}: name a folder with libnccl.so.2, or a wheel")
    if options.call:
        known = parts_of_call(known, options.call)
        options.minutes = options.minutes or CALL_MINUTES
    asked = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in options.parts or ["*"])]
    return options, [part for part in known if part.estimate.part in asked]


def budget_of(options: argparse.Namespace) -> float | None:
    """Returns the time limit of the call in seconds, or None."""
    return None if options.minutes is None else 60 * options.minutes


def listing(parts: list[Part], ledger: Ledger | None, budget: float | None, again: bool) -> str:
    """Lists every part with its estimate and its result so far, and marks the parts that the next call would run."""
    known = {o.part: o for o in ledger.outcomes()} if ledger else {}
    rest = to_do([part.estimate for part in parts], ledger.results() if ledger else {}, again)
    chosen = plan(rest, budget)
    width = max(len(part.estimate.part) for part in parts)
    lines = [f"  {'part':<{width}}  {'about':>5}  {'at most':>7}"]
    for part in parts:
        estimate, outcome = part.estimate, known.get(part.estimate.part)
        state = f" ({outcome.result.value})" if outcome and outcome.result is not Result.NOT_YET else ""
        mark = "*" if estimate.part in chosen else " "
        times = f"{estimate.seconds:>3.0f} s  {estimate.limit:>5.0f} s"
        lines.append(f"{mark} {estimate.part:<{width}}  {times}  {part.about}{state}")
    seconds = sum(estimate.seconds for estimate in rest if estimate.part in chosen)
    lines.append(f"* {len(chosen)} parts that would run now, about {duration(seconds)}; all times are estimates")
    return "\n".join(lines)


def make_visit(place: Place, out: Path, options: argparse.Namespace, gpu: host.Gpu | None, progress: Progress) -> Visit:
    """Collects the facts about the host that the parts need."""
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
        nccl=options.nccl,
    )


def winners_to_copy(given: Path | None, ours: Path) -> list[Path]:
    """Returns the files of fastest engines that are in `given` but not in `ours`."""
    return [file for file in sorted(given.glob(WINNERS)) if not (ours / file.name).exists()] if given else []


def write_machine(visit: Visit, options: argparse.Namespace, winners: int, before: list[dict]) -> None:
    """Writes machine.json. Each call adds an entry: facts about the host, options, the number of copied winners."""
    manifest = visit.place.root / "manifest.json"
    facts = {
        "started_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "arguments": sys.argv[1:],
        "device": options.device,
        "winners_copied": winners,
        "gpu": asdict(visit.gpu) if visit.gpu else None,
        "torch": visit.torch[1] if isinstance(visit.torch, tuple) else visit.torch,
        "bundle_commit": json.loads(manifest.read_text(encoding="utf-8"))["commit"] if manifest.exists() else None,
        **host.machine_facts(visit.folders),
    }
    whole_file.write_text(visit.out / MACHINE, json.dumps([*before, facts], indent=1) + "\n")
    if report := host.smi_report():
        whole_file.write_text(visit.out / "nvidia-smi.txt", report)


def earlier_calls(out: Path, gpu: host.Gpu | None) -> list[dict]:
    """Returns the entries of machine.json. Errors: ValueError if gpu_check did not make the folder, or if the folder
    has results of another GPU."""
    if all(whole_file.is_unfinished(path) for path in out.iterdir()):
        return []
    try:
        calls = json.loads((out / MACHINE).read_text(encoding="utf-8"))
        there = calls[-1]["gpu"]
        name = there["name"] if there else "no GPU"
    except (OSError, ValueError, LookupError, TypeError):
        raise ValueError(f"{out} is not empty, and not of an earlier call: name another directory") from None
    if there != (asdict(gpu) if gpu else None):
        raise ValueError(f"{out} has results of another machine ({name}, or another driver): name another directory")
    return calls


def archive(out: Path) -> Path:
    """Writes a tar of the folder beside the folder."""
    target = out.with_name(out.name + ".tar.gz")
    with tarfile.open(target, "w:gz") as tar:
        tar.add(out, out.name)
    return target


def check(options: argparse.Namespace, place: Place, parts: list[Part]) -> int:
    """Runs the parts. Errors: OSError, ValueError; KeyboardInterrupt before and after the parts."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # at the end of a job or a connection, keep results as after Ctrl-C
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup, SIGHUP stays ignored
            signal.signal(number, signal.default_int_handler)
    gpu = host.find_gpu() if options.device == "cuda" else None
    if isinstance(gpu, str):
        print(f"gpu_check: no GPU: {gpu}; nothing was run", file=sys.stderr)
        return 3
    budget = budget_of(options)
    progress = Progress(budget)
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    out = Path(os.path.realpath(options.directory or f"gpu_check-{platform.node()}-{stamp}"))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{out} is not a directory: name another") from None
    calls = earlier_calls(out, gpu)
    for left in filter(whole_file.is_unfinished, list(out.iterdir())):  # files that a killed call left
        left.unlink()
    ledger = Ledger(out, [part.estimate for part in parts], call=len(calls) + 1)
    visit = make_visit(place, out, options, gpu, progress)
    winners = winners_to_copy(options.winners, visit.winners)
    write_machine(visit, options, len(winners), calls)  # first, because this file marks the folder as gpu_check's
    progress.say(f"{gpu.name if gpu else 'no GPU: this tests the command alone'}, results in {out}")
    for file in winners:
        visit.winners.mkdir(exist_ok=True)
        whole_file.copy(file, visit.winners / file.name)
    not_yet = f"no time: {duration(budget)} were given" if budget else "not reached"
    try:
        run_parts(visit, parts, budget, progress, ledger, options.again)
    except KeyboardInterrupt:
        not_yet = f"interrupted in {visit.part or 'the beginning'}"
    ledger.write(not_yet)
    outcomes = ledger.outcomes(not_yet)
    closing = "\n" + ledger.text(not_yet) + write_verdict(visit)
    if any(outcome.result is Result.NOT_YET for outcome in outcomes):
        closing += f"the same command again goes on with what is missing (--minutes, or all of it): {out}\n"
    with contextlib.suppress(BrokenPipeError):  # the exit code must not depend on the reader of the output
        try:
            print(closing, end="", flush=True)
        finally:
            home = archive(out)
        print(f"{home}: what to take home (docs/gpu_check.md)")
    asked = {part.estimate.part for part in parts}
    return exit_code([outcome for outcome in outcomes if outcome.part in asked])


def answer(options: argparse.Namespace, parts: list[Part]) -> int:
    """Does what the options ask for. Errors: as check()."""
    if options.libraries:
        torch = host.find_torch(options.python)
        print(":".join(host.library_folders([torch[0]] if isinstance(torch, tuple) else [sys.executable])))
        return 0
    if options.plan:
        print(visit_text(parts))
        return 0
    if options.list:
        ledger = Ledger(options.directory, [part.estimate for part in parts]) if options.directory else None
        print(listing(parts, ledger, budget_of(options), options.again))
        return 0
    place = find_place(ROOT)
    if place is None:
        raise ValueError(f"no programs in {ROOT}: run scripts/build, or unpack the bundle")
    return check(options, place, parts)


def main() -> int:
    """Runs the command line. Returns the exit code."""
    options, parts = parse_arguments()
    code, fault = 0, ""
    try:
        if sys.stdout is None:
            raise ValueError("standard output is closed; redirect it to a file")
        code = answer(options, parts)
        sys.stdout.flush()  # otherwise a full disk would show only at the interpreter's end
    except KeyboardInterrupt:
        code, fault = 7, "interrupted; what is finished stays in the directory"
    except BrokenPipeError:
        pass  # the reader (head, less) closed the pipe
    except (OSError, ValueError) as error:
        code, fault = 2, str(error)
    if fault:
        print(f"gpu_check: {fault}", file=sys.stderr)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # otherwise Python would write pending output at exit, fail, and return 120
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


if __name__ == "__main__":
    sys.exit(main())
