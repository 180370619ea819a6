"""Measures time and memory of scripts/merge: makes job files, merges them, checks the result, prints.

The job files are SYNTHETIC and say this everywhere a reader may look: origin 'simulated', the command line, the host
names, the checks, a provenance fact. They are in a folder that is removed at the end.

The files are dropped from the operating system's cache before the merge, so that the merge reads them from the disk.
This program needs only Python 3.10. The merge itself runs in the Python that scripts/merge chooses.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SCRIPTS))
sys.dont_write_bytecode = True

from hvdb import store  # noqa: E402  (the path must be set first)

MARK = "synthetic: made by scripts/maintain/bench_merge, nothing was measured"
# The kinds of samples that hvd_bench stores per rank.
KINDS = (
    "step_seconds",
    "compute_seconds",
    "exposed_seconds",
    "reduce_seconds",
    "control_seconds",
    "copy_seconds",
    "update_seconds",
    "loss",
)
PROVENANCE_ROWS = 80  # hvd_bench records about this many
MIB = 1 << 20


@dataclass(frozen=True)
class Merged:
    """Cost of one merge: wall and processor seconds, peak resident set of the process in MiB."""

    seconds: float
    processor_seconds: float
    peak_mib: float


def make_template(path: Path, ranks: int, steps: int) -> None:
    """Writes the samples of one run, which every job file copies: (ranks x kinds) blobs of `steps` doubles."""
    numbers = random.Random(1)
    connection = store.create(path)
    with connection:
        connection.executemany(
            "INSERT INTO sample (run_uuid, rank, kind, count, data) VALUES ('template', ?, ?, ?, ?)",
            (
                (rank, kind, steps, array.array("d", (0.1 + 0.01 * numbers.random() for _ in range(steps))).tobytes())
                for rank in range(ranks)
                for kind in KINDS
            ),
        )
    connection.close()


def make_job(path: Path, template: Path, number: int, ranks: int, steps: int) -> str:
    """Writes one job file with one session and one run of `ranks`. Returns the run's UUID."""
    numbers = random.Random(1000 + number)
    session, run = (str(uuid.UUID(int=numbers.getrandbits(128), version=4)) for _ in range(2))
    connection = store.create(path)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("ATTACH ? AS template", (str(template),))
    row = {
        "uuid": run,
        "session_uuid": session,
        "origin": "simulated",
        "phase": "full",
        "status": "complete",
        "started_utc": "2000-01-01T00:00:00.000Z",
        "model": "resnet101",
        "batch_size": 64,
        "image_size": 224,
        "device": "replay",
        "compute_type": "fp32",
        "allreduce_type": "fp32",
        "schedule": "static",
        "comm": "mpi",
        "data_plane": "synthetic",
        "world_size": ranks,
        "allocation_size": ranks,
        "nodes": -(-ranks // 4),
        "threads": 1,
        "seed": number,
        "measured_steps": steps,
        "final_loss": float(number),
        "checks": MARK,
        "fingerprint": "synthetic",
    }
    loss = array.array("d", [float(number)] * steps).tobytes()
    with connection:
        connection.execute(
            "INSERT INTO session (uuid, started_utc, command_line) VALUES (?, ?, ?)",
            (session, row["started_utc"], MARK),
        )
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT INTO run ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))
        connection.executemany(
            "INSERT INTO provenance (run_uuid, key, value, in_fingerprint) VALUES (?, ?, ?, 0)",
            ((run, f"synthetic.{i:03d}", MARK) for i in range(PROVENANCE_ROWS)),
        )
        connection.executemany(
            "INSERT INTO rank (run_uuid, rank, host, local_rank, gradient_checksum) VALUES (?, ?, ?, ?, ?)",
            ((run, rank, f"synthetic-{rank // 4}", rank % 4, "0" * 16) for rank in range(ranks)),
        )
        connection.execute(
            "INSERT INTO sample (run_uuid, rank, kind, count, data) SELECT ?, rank, kind, count, data"
            " FROM template.sample",
            (run,),
        )
        # The value makes the files differ, so that a mix-up of two files would be found.
        connection.execute("UPDATE sample SET data = ? WHERE run_uuid = ? AND rank = 0 AND kind = 'loss'", (loss, run))
    connection.close()
    return run


def drop_from_cache(paths: Sequence[Path]) -> None:
    """Flushes the files and asks the operating system to drop their pages, which some file systems do not do."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def run_merge(output: Path, jobs: Path) -> Merged:
    """Runs scripts/merge as a user does. Errors: SystemExit with the message of a merge that failed."""
    begun = time.monotonic()
    process = subprocess.Popen(
        [str(SCRIPTS / "merge"), "-o", str(output), str(jobs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = process.stdout.read() if process.stdout else ""
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"bench_merge: scripts/merge ended with {process.returncode}: {said.strip()}")
    return Merged(time.monotonic() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def faults_of(output: Path, expected: dict[str, int], ranks: int, steps: int) -> list[str]:
    """Returns a line for each fault of the merged store."""
    with store.open_readonly(output) as connection:
        found = {row[0]: row[1] for row in connection.execute("SELECT uuid, seed FROM run")}
        if found != expected:
            return [f"{len(found)} runs, expected {len(expected)}"]
        wrong = [
            uuid
            for uuid, number in expected.items()
            if connection.execute(
                "SELECT data FROM sample WHERE run_uuid = ? AND rank = 0 AND kind = 'loss'", (uuid,)
            ).fetchone()[0]
            != array.array("d", [float(number)] * steps).tobytes()
        ]
        rows = connection.execute("SELECT count(*), sum(count), sum(length(data)) FROM sample").fetchone()
        want = (len(expected) * ranks * len(KINDS), len(expected) * ranks * len(KINDS) * steps)
        faults = [f"samples of another run in {uuid}" for uuid in wrong]
        if tuple(rows) != (*want, 8 * want[1]):
            faults.append(f"samples (rows, count, bytes) {tuple(rows)}, expected {(*want, 8 * want[1])}")
        return faults


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/maintain/bench_merge",
        description=__doc__.split("\n", 1)[0],
        epilog="exit codes: 0 good, 1 the merged store is wrong or a limit is passed, 2 usage or I/O",
    )
    parser.add_argument("--files", type=int, default=1000, help="job files (default 1000)")
    parser.add_argument("--ranks", type=int, default=512, help="ranks per file (default 512)")
    parser.add_argument("--steps", type=int, default=200, help="steps per rank (default 200)")
    parser.add_argument("--folder", type=Path, help="where to work (default: the system's temporary folder)")
    parser.add_argument("--max-seconds", type=float, help="fail if the merge takes longer")
    parser.add_argument("--max-mib", type=float, help="fail if the merge takes more memory")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    arguments = parser.parse_args(argv)
    if min(arguments.files, arguments.ranks, arguments.steps) < 1:
        parser.error("--files, --ranks and --steps must be at least 1")
    return arguments


def main(argv: Sequence[str]) -> int:
    """Makes files, merges, checks and prints. Returns the exit code."""
    arguments = parse(argv)
    raw = 8 * arguments.files * arguments.ranks * arguments.steps * len(KINDS)
    free = shutil.disk_usage(arguments.folder or tempfile.gettempdir()).free
    if free < 3.2 * raw:
        print(f"bench_merge: needs {3.2 * raw / MIB:.0f} MiB of disk, {free / MIB:.0f} are free", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="hvd-bench-merge-", dir=arguments.folder) as scratch:
        jobs, output = Path(scratch) / "jobs", Path(scratch) / "merged.db"
        jobs.mkdir()
        begun = time.monotonic()
        template = Path(scratch) / "template"
        make_template(template, arguments.ranks, arguments.steps)
        files = [jobs / f"synthetic-{number:05d}.db" for number in range(arguments.files)]
        expected = {
            make_job(path, template, number, arguments.ranks, arguments.steps): number
            for number, path in enumerate(files)
        }
        drop_from_cache(files)
        made = time.monotonic() - begun
        first = run_merge(output, jobs)
        state = output.stat()
        again = run_merge(output, jobs)
        faults = faults_of(output, expected, arguments.ranks, arguments.steps)
        after = output.stat()
        if (after.st_ino, after.st_size, after.st_mtime_ns) != (state.st_ino, state.st_size, state.st_mtime_ns):
            faults.append("merging again changed the file")
        if arguments.max_seconds is not None and first.seconds > arguments.max_seconds:
            faults.append(f"{first.seconds:.1f} s, the limit is {arguments.max_seconds:.1f} s")
        if arguments.max_mib is not None and max(first.peak_mib, again.peak_mib) > arguments.max_mib:
            faults.append(f"{max(first.peak_mib, again.peak_mib):.0f} MiB, the limit is {arguments.max_mib:.0f} MiB")
        document = {
            "files": arguments.files,
            "ranks": arguments.ranks,
            "steps": arguments.steps,
            "kinds": len(KINDS),
            "input_mib": sum(path.stat().st_size for path in files) / MIB,
            "output_mib": state.st_size / MIB,
            "making_seconds": made,
            "merge": asdict(first),
            "again": asdict(again),
            "faults": faults,
        }
    show(document, as_json=arguments.json)
    return 1 if faults else 0


def show(document: dict, as_json: bool) -> None:
    """Prints the result, as text or JSON."""
    if as_json:
        print(json.dumps(document, indent=2))
        return
    print(
        f"{document['files']} synthetic job files of {document['ranks']} ranks x {document['steps']} steps x "
        f"{document['kinds']} kinds: {document['input_mib']:.0f} MiB, merged {document['output_mib']:.0f} MiB "
        f"(made in {document['making_seconds']:.1f} s)"
    )
    for name, what in (("merge", "merge, read from the disk"), ("again", "again, nothing to add")):
        took = document[name]
        print(
            f"{what:27s}{took['seconds']:8.1f} s ({took['processor_seconds']:.1f} s of processor)"
            f"{took['peak_mib']:8.0f} MiB at most"
        )
    print("\n".join(f"WRONG: {fault}" for fault in document["faults"]) or "checked: all runs and samples are there")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
