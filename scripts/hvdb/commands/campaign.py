"""hvdb campaign, with the commands generate, submit, status, resume and cancel.

Needs Python 3.11 and uses only its standard library.
"""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from hvdb.base import data, edge, identity, printable, progress
from hvdb.base.errors import EXIT_CHECK_FAILED, EXIT_GOOD, CampaignError
from hvdb.campaign import events, folder, life, plan, site, spec, status, stores
from hvdb.campaign.plan import duration_text
from hvdb.campaign.scheduler import Active, Unit
from hvdb.campaign.script import Layout
from hvdb.commands import new_parser

PROGRAM = data.called("campaign")
EPILOG = (
    "exit codes: 0 good, 1 something failed, 2 usage or input, 7 interrupted; "
    "docs/campaigns.md explains specs and sites"
)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    made = new_parser(
        "campaign",
        "A scaling study, 1 to 512 ranks: described once, run by Slurm, LSF or here, resumed until done.",
        EPILOG,
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, work: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        own = commands.add_parser(name, help=text, description=text, epilog=EPILOG)
        own.set_defaults(work=work)
        return own

    generate = command("generate", run_generate, "Write the job scripts of a spec for a site.")
    generate.add_argument("spec", type=Path, metavar="SPEC", help=f"{', '.join(spec.known())}, or a TOML file")
    generate.add_argument("--site", required=True, help=f"{', '.join(site.known())}, or a TOML file")
    generate.add_argument("--out", type=Path, metavar="FOLDER", help="of the campaign; made if it is not there")
    generate.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one field of the site")
    generate.add_argument("--pilot", nargs="+", type=Path, default=[], metavar="STORE", help="runs to take times from")
    generate.add_argument("--dry-run", action="store_true", help="print jobs and node-hours; write nothing")
    generate.add_argument("--replace", action="store_true", help="although the folder has another spec or site")

    for name, text in (
        ("submit", "Hand all jobs in for the first time."),
        ("resume", "Hand in what the stores lack and nothing is at work on."),
    ):
        hand_in = command(name, run_hand_in, text)
        hand_in.add_argument("folder", type=Path, metavar="FOLDER")
        hand_in.add_argument("--only", action="append", default=[], metavar="JOB", help="this job, at once")
        hand_in.add_argument("--dry-run", action="store_true", help="print what would be handed in")
        _add_stores(hand_in)

    show = command("status", run_status, "Say what is done, queued, running and failed, and how much time is left.")
    show.add_argument("folder", type=Path, metavar="FOLDER")
    show.add_argument("--json", action="store_true", help="one JSON document")
    _add_stores(show)

    stop = command("cancel", run_cancel, "End what is queued or running; running jobs store what they have first.")
    stop.add_argument("folder", type=Path, metavar="FOLDER")
    stop.add_argument("--only", action="append", default=[], metavar="JOB")
    return made


def _add_stores(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store", action="append", default=[], type=Path, metavar="FILE", help="what it holds is done as well"
    )


def _print_plan(made: plan.Plan) -> None:
    where = printable.terminal(f"campaign {made.spec.name} on {made.site.name}")
    print(f"{where}: spec {made.spec.hash}, {len(made.jobs)} jobs, {sum(1 for _ in made.cells())} cells")
    print(f"{'job':<14} {'nodes':>5} {'repetitions':>11} {'cells':>5} {'walltime':>9} {'node-hours':>10}  ranks")
    for job in made.jobs:
        ranks = sorted({c.shape.ranks for cells in job.cells.values() for c in cells if c.role == plan.SCALE})
        cells = len(next(iter(job.cells.values())))
        print(
            f"{job.name:<14} {job.nodes:>5} {len(job.cells):>11} {cells:>5} {duration_text(job.walltime_seconds):>9} "
            f"{job.node_hours:>10.2f}  {' '.join(map(str, ranks))}"
        )
    print(f"{'at most':<14} {'':>5} {'':>11} {'':>5} {'':>9} {sum(job.node_hours for job in made.jobs):>10.2f}")
    for line in made.left_out:
        print(printable.terminal(f"left out: {line}"))


def _program(name: str) -> Path:
    """Returns the absolute path of the hvd_bench that jobs run. name: the site's program.hvd_bench.

    Errors: CampaignError.
    """
    if name == data.BENCH:
        if found := data.hvd_bench():
            return found
        raise CampaignError(
            f"there is no {data.BENCH} beside {PROGRAM} or on the PATH; name the one that jobs run: "
            f"--set program.hvd_bench=/path/of/{data.BENCH}"
        )
    if data.CHECKOUT:
        return data.CHECKOUT / name
    if not Path(name).is_absolute():
        raise CampaignError(
            f"program.hvd_bench: {name} starts at a checkout, and {PROGRAM} is installed without one; give an absolute "
            f"path, or {data.BENCH} for the one that is installed"
        )
    return Path(name)


def run_generate(arguments: argparse.Namespace) -> int:
    """Writes a campaign's folder, or only prints what it would contain."""
    file = spec.file(arguments.spec)
    study = spec.read(file)
    machine = site.read(arguments.site, arguments.set)
    pilot = stores.pilot(arguments.pilot) if arguments.pilot else None
    for note in pilot.notes if pilot else ():
        print(printable.terminal(f"note: {note}"), file=sys.stderr)
    replays = {} if arguments.dry_run else spec.replays(study)
    made = plan.make(study, machine, pilot, {model: identity.of_file(file) for model, file in replays.items()})
    if not (arguments.out or arguments.dry_run):
        raise CampaignError("generate: --out FOLDER is missing (or --dry-run, to see what it would be)")
    if arguments.dry_run:
        _print_plan(made)
        return EXIT_GOOD
    layout = Layout(folder.resolved(arguments.out))
    program = _program(machine.program.hvd_bench)
    folder.write(made, layout, program, file.read_text(encoding="utf-8"), replace=arguments.replace)
    _print_plan(made)  # after the files are written, because printing fails if nobody reads the output
    print(printable.terminal(f"written to {layout.folder}; next: {PROGRAM} submit {shlex.quote(str(arguments.out))}"))
    return EXIT_GOOD


def _held(manifest: folder.Manifest, arguments: argparse.Namespace) -> tuple[set[str], list[str]]:
    with progress.shown("reading the campaign's stores") as step:
        return life.held_cells(manifest, arguments.store, step)


def run_hand_in(arguments: argparse.Namespace) -> int:
    """Runs the commands submit and resume."""
    manifest = folder.read(arguments.folder)
    life.require_jobs(manifest, arguments.only)
    life.require_recordings(manifest)
    with folder.locked(manifest.layout) as lock:
        if arguments.command == "submit" and not arguments.dry_run and life.Journal(manifest).submitted():
            raise CampaignError(f"{arguments.folder}: was submitted before; resume hands in what is missing")
        held, notes = _held(manifest, arguments)
        active = life.active_units(manifest)
        orders = life.lacking_orders(manifest, held, active, arguments.only)
        for note in notes:
            edge.tell(PROGRAM, f"note: {note}", sys.stderr)
        if arguments.dry_run:
            for order in orders:
                waits = " (after the first job)" if order.after_gate else ""
                print(f"{order.job.name}: {life.counted(order)}{waits}")
        else:
            life.submit(manifest, orders, active, lock, functools.partial(edge.tell, PROGRAM))
    if not orders:
        print("nothing to hand in: all cells are held" if not active else "nothing to hand in: the rest is at work")
    return EXIT_GOOD


def _active_or_note(manifest: folder.Manifest, notes: list[str]) -> dict[Unit, Active]:
    try:
        return life.active_units(manifest)
    except CampaignError as error:
        notes.append(f"{error} (cells that are queued or running show as lacking)")
        return {}


def run_status(arguments: argparse.Namespace) -> int:
    """Prints the status of the campaign. Returns 1 if cells have failed."""
    manifest = folder.read(arguments.folder)
    # Ask the scheduler first and read the stores last. A job that ends in between is then shown as done, not as lost.
    notes: list[str] = []
    active = _active_or_note(manifest, notes)
    attempts = events.latest(events.read(manifest.layout.events))
    held, faults = _held(manifest, arguments)
    standing = status.standing(manifest, held, active, attempts, life.Journal(manifest).submitted(), [*notes, *faults])
    print(json.dumps(status.as_data(standing), indent=1) if arguments.json else status.as_text(standing))
    return EXIT_CHECK_FAILED if standing.failures else EXIT_GOOD


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancels the jobs that are queued or running."""
    manifest = folder.read(arguments.folder)
    life.require_jobs(manifest, arguments.only)
    # cancel takes no lock. On a site without a scheduler, `submit` holds the lock for as long as its jobs run.
    lines = life.cancel(manifest, life.active_units(manifest), arguments.only)
    print("\n".join(map(printable.terminal, lines)) if lines else "nothing is queued or running")
    return EXIT_GOOD


def run(arguments: argparse.Namespace) -> int:
    """Runs the command and returns the exit code. Errors: CampaignError."""
    return arguments.work(arguments)
