#!/usr/bin/env python3
"""Training speed on the GPU: this project's cuDNN backend beside PyTorch's, on the same GPU, in turns.

For each network and type, the first variant of gpu_torch.py goes through --batches until memory ends or a larger batch
is not faster. The other variants run at the best batch of the first. Each variant runs alone, and the fastest is the
peer. Our side searches its best batch from half of the peer's batch on. Then the two sides take turns (A B B A ...),
each at its own best batch. If the batches differ, the sides also take turns at the peer's batch. The ratio compares the
median seconds per image, with a bootstrap interval over the turns. All steps have the same images but new labels. Both
losses must be finite and stay above a thousandth of their first value. At the end comes a verdict against --target, by
the stored samples. --report repeats the verdict for files of several runs.

    compare_gpu.py --bench build/release/bin/train_step_bench --json gpu.json --store hvd_bench.db
    compare_gpu.py --report gpu.json --store hvd_bench.db

Exit code: 0 all measured, 1 a comparison broke off, or a loss is not finite or collapsed, 2 usage, 3 only variants of
the peer are missing.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from gpu_bounds import Bound, read_bounds
from gpu_clocks import ClockLog, summary
from gpu_report import HEADING, TARGET, row_lines, verdict_lines
from gpu_rows import Found, Pair, Row, Turns, read_rows, write_rows
from serving import PeerError, Server, take_turns

HERE = Path(__file__).resolve().parent
LEAST_GAIN = 1.02  # a larger batch must have at least this many times the best images per second so far
OUT_OF_MEMORY = 8  # the exit code of both sides
SMALLEST_BATCH = 8
BATCHES = (64, 128, 256, 512)
MODELS = ("resnet101", "vgg16", "inception3")
DTYPES = ("fp32", "tf32", "fp16", "bf16")
VARIANTS = ("eager", "graph", "compile", "autotune")
RESERVE_SECONDS = 90.0  # reserved from --seconds for our search and the turns


def steps_for(seconds: float, per_step: float) -> int:
    return max(1, min(1000, round(seconds / per_step)))


def best_batch(
    server: Server, batches: Sequence[int], seconds: float, found: Found, left: Callable[[], float] = lambda: 1e9
) -> None:
    """Tries `batches` one after another. The server already uses the first batch. Leaves the server at the best batch
    and fills `found`.

    left: returns the seconds left. Errors: PeerError if the server ends, or cannot return to an earlier batch.
    """
    begun, standing = left(), 0
    for batch in batches:
        now = left()
        if standing and now < begun - now:  # a larger batch may take as long as all earlier batches together
            found.stopped = f"no time for batch {batch}"
            break
        if standing and (refusal := server.batch(batch)):
            found.refused[batch] = refusal
            found.stopped = f"batch {batch}: {refusal}"
            standing = 0
            break
        standing = batch
        first_loss = server.loss()
        per_step = statistics.median(server.steps(2))
        rate = batch / statistics.median(server.steps(steps_for(seconds, per_step)))
        found.tried[batch] = rate
        enough = rate < LEAST_GAIN * found.img_s
        if rate > found.img_s:
            found.batch, found.img_s, found.first_loss = batch, rate, first_loss
        if enough:
            found.stopped = "no more gain"
            break
    else:
        found.stopped = f"batch {batches[-1]} is the last"
    if found.batch != standing:
        if refusal := server.batch(found.batch):
            raise PeerError(f"{server.name} cannot return to batch {found.batch}: {refusal}")
        found.first_loss = server.loss()  # the first loss, because a change of batch makes new weights


class Comparison:
    """The processes of one network in one type, and their results. run() fills `row` step by step."""

    def __init__(self, options: argparse.Namespace, model: str, dtype: str, log: IO[bytes] | None) -> None:
        self._options = options
        self._log = log
        self.row = Row(model, dtype, quick=options.first_variant_only)
        self._shared = ["--model", model, "--dtype", dtype, "--device", options.device]
        self._shared += ["--image", str(options.image)]
        self._shared += ["--labels", options.labels] if options.labels != "fresh" else []
        self._ends = time.monotonic() + options.seconds

    def _left(self) -> float:
        return self._ends - time.monotonic()

    def _torch(self, variant: str, batch: int) -> Server:
        options = self._options
        command = [options.python, str(HERE / "gpu_torch.py"), *self._shared, "--variant", variant]
        command += ["--batch", str(batch), "--memory-fraction", str(options.memory_fraction)]
        command += ["--benchmark-limit", str(options.benchmark_limit)]
        if options.warm_up is not None:
            command += ["--warm-up", str(options.warm_up)]
        if options.compile_cache:
            command += ["--compile-cache", str(options.compile_cache)]
        own = options.compile_seconds if variant in ("compile", "autotune") else options.start_seconds
        limit = min(own, self._left() - min(RESERVE_SECONDS, 0.4 * options.seconds))
        if limit <= 0:
            raise PeerError(f"torch {variant}: no time was left to start it")
        try:
            return Server(f"torch {variant}", command, start_seconds=limit, log=self._log)
        except PeerError as error:
            if error.code is None and limit < own:
                raise PeerError(f"{error}, and there was no time left for its {own:.0f} s") from None
            raise

    def _ours(self, batch: int) -> Server:
        options = self._options
        command = [options.bench, *self._shared, "--batch", str(batch), "--serve"]
        if options.winners:
            command += ["--winners", str(options.winners)]
        environment = {"LD_LIBRARY_PATH": options.library_path} if options.library_path else {}
        return Server("ours", command, environment, start_seconds=options.start_seconds, log=self._log)

    def _search(
        self, make: Callable[[int], Server], batches: Sequence[int], found: Found, running: ExitStack
    ) -> Server:
        """Returns a server at the best of `batches`. Halves the first batch until the batch fits into memory."""
        first = batches[0]
        while True:
            try:
                server = running.enter_context(make(first))
                break
            except PeerError as error:
                if error.code != OUT_OF_MEMORY or first // 2 < SMALLEST_BATCH:
                    raise
                found.refused[first] = str(error)
                first //= 2
        larger = batches[1:] if first == batches[0] else ()
        best_batch(server, [first, *larger], self._options.search_seconds, found, self._left)
        return server

    def _fastest_peer(self, running: ExitStack) -> tuple[Server, Found] | None:
        """Runs every variant in turn, alone on the GPU. Returns the fastest, which keeps running; None if none runs.

        The first variant searches its best batch. The other variants use this batch, because each further batch would
        cost minutes of compiling, or another search for algorithms."""
        options, row = self._options, self.row
        best: Found | None = None
        kept: Server | None = None
        for variant in options.variants:
            if kept is not None:
                kept.close()
                kept = None
            found = Found(f"torch {variant}")
            row.variants.append(found)
            alone = running.enter_context(ExitStack())  # ends a server that does not end by itself
            try:
                batches = (best.batch,) if best else options.batches
                server = self._search(lambda batch, v=variant: self._torch(v, batch), batches, found, alone)
            except PeerError as error:
                alone.close()
                found.batch, found.img_s, found.stopped = 0, 0.0, str(error)
                row.missing_variants.append(str(error))
                continue
            if best is None or found.img_s > best.img_s:
                best, kept = found, server
            else:
                server.close()
            if options.first_variant_only:
                break
        if best is None:
            return None
        if kept is None:
            kept = running.enter_context(self._torch(best.name.removeprefix("torch "), best.batch))
            best.first_loss = kept.loss()
        return kept, best

    def run(self, save: Callable[[], None]) -> None:
        """Fills the row. Saves after each result, because later steps may be cut off."""
        row, options = self.row, self._options
        with ExitStack() as running:
            try:
                # The peer starts first, because its share of the memory is limited. Ours uses the rest.
                if (fastest := self._fastest_peer(running)) is None:
                    return
                peer, best = fastest
                row.ours_search = Found("ours")
                own = options.ours_batches or [b for b in options.batches if 2 * b >= best.batch] or [best.batch]
                ours = self._search(self._ours, own, row.ours_search, running)
                row.best = self._turns(ours, row.ours_search, peer, best)
                row.judge_losses()
                save()
                if row.ours_search.batch != best.batch:
                    row.same = self._at_the_peers_batch(ours, row.ours_search, peer, best)
                    row.judge_losses()
            except PeerError as error:
                row.troubles.append(str(error))

    def _at_the_peers_batch(self, ours: Server, ours_found: Found, peer: Server, peer_found: Found) -> Pair | None:
        batch = peer_found.batch
        if refusal := ours.batch(batch):
            ours_found.refused[batch] = refusal
            return None
        loss = ours.loss()
        rate = batch / statistics.median(ours.steps(2))
        return self._turns(ours, Found("ours", batch, rate, loss), peer, peer_found)

    def _turns(self, ours: Server, ours_found: Found, peer: Server, peer_found: Found) -> Pair:
        options = self._options
        servers, found = [ours, peer], [ours_found, peer_found]
        steps = [steps_for(options.turn_seconds, f.batch / f.img_s) for f in found]
        with ClockLog(options.clocks, self.row.model, self.row.dtype) as clocks:
            seconds = take_turns(servers, options.turns, steps, clocks.turn)
        sides = [
            Turns(
                name=server.name,
                description=server.description,
                batch=f.batch,
                first_loss=f.first_loss,
                last_loss=server.loss(),
                seconds_per_step=own,
                clocks=summary(clocks.samples, server.name),
            )
            for server, f, own in zip(servers, found, seconds, strict=True)
        ]
        return Pair(*sides, options.turns)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="train_step_bench of this project")
    parser.add_argument("--report", nargs="+", type=Path, metavar="JSON", help="measure nothing: the verdict of these")
    parser.add_argument("--store", type=Path, help="a store of hvd_bench, for the bounds of its runs on this GPU")
    parser.add_argument("--target", type=float, default=TARGET, help="of the verdict, times the peer's images/s")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has torch")
    parser.add_argument("--library-path", default="", help="LD_LIBRARY_PATH of ours: where NVIDIA's libraries are")
    parser.add_argument("--models", nargs="+", help=f"default: {' '.join(MODELS)}; with --report: must be there")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="default: fp16; with --report: must be there")
    parser.add_argument("--variants", nargs="+", default=["eager", "graph"], choices=VARIANTS)
    parser.add_argument("--first-variant-only", action="store_true", help="the peer is the first variant that runs")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"], help="cpu: tests this program only")
    parser.add_argument("--image", type=int, default=0, help="image side; 0: the network's own")
    parser.add_argument("--labels", default="fresh", choices=["fresh", "cycled"], help="new in every step, or the same")
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES, help="to be tried, ascending")
    parser.add_argument("--ours-batches", nargs="+", type=int, help="by ours; default: from half the peer's best on")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--turn-seconds", type=float, default=1.0, help="of each side")
    parser.add_argument("--search-seconds", type=float, default=1.0, help="for each batch tried")
    parser.add_argument("--seconds", type=float, default=1e6, help="for each network and type, about")
    parser.add_argument("--start-seconds", type=float, default=120.0, help="limit for a process to start")
    parser.add_argument("--compile-seconds", type=float, default=240.0, help="limit for torch.compile")
    parser.add_argument("--compile-cache", type=Path, help="where torch.compile keeps what it has compiled")
    parser.add_argument("--winners", type=Path, help="where ours keeps the fastest engines")
    parser.add_argument("--memory-fraction", type=float, default=0.45, help="the peer's, of the device's memory")
    parser.add_argument("--benchmark-limit", type=int, default=0, help="PyTorch: algorithms per convolution; 0: all")
    parser.add_argument("--warm-up", type=int, help="PyTorch's steps before the first answer")
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--clocks", type=Path, help="log clocks, power and throttling in the turns here, as CSV")
    parser.add_argument("--log", type=Path, help="what the processes write on standard error; default: shown")
    options = parser.parse_args()
    if not options.bench and not options.report:
        parser.error("--bench PROGRAM measures, --report FILE reports: give one of them")
    for name, batches in (("--batches", options.batches), ("--ours-batches", options.ours_batches or [1])):
        if min(batches) < 1 or list(batches) != sorted(set(batches)):
            parser.error(f"{name}: {' '.join(map(str, batches))} is not ascending from 1 on")
    return options


def measure(options: argparse.Namespace, bounds: list[Bound]) -> list[Row]:
    """Measures all rows and prints them one by one."""
    rows: list[Row] = []

    def save() -> None:
        if options.json:
            write_rows(rows, options.json)

    if options.clocks:
        options.clocks.unlink(missing_ok=True)
    with ExitStack() as files:
        log = files.enter_context(options.log.open("ab")) if options.log else None
        for model in options.models or MODELS:
            for dtype in options.dtypes or ("fp16",):
                comparison = Comparison(options, model, dtype, log)
                rows.append(comparison.row)
                comparison.run(save)
                print("\n".join(row_lines(rows[-1], bounds)), flush=True)
                save()
    return rows


def main() -> int:
    options = parse_arguments()
    # SIGTERM raises SystemExit, so that no server is left on the GPU.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    expected = [(model, dtype) for model in options.models or () for dtype in options.dtypes or ()]
    try:
        bounds = read_bounds(options.store) if options.store else []
        print(HEADING)
        if options.report:
            rows = [row for file in options.report for row in read_rows(file)]
            print("\n".join(line for row in rows for line in row_lines(row, bounds)))
        else:
            rows = measure(options, bounds)
    except (OSError, ValueError) as error:
        print(f"compare_gpu: {error}", file=sys.stderr)
        return 2
    print("\n" + "\n".join(verdict_lines(rows, expected, options.target)))
    if any(row.troubles for row in rows):
        return 1
    return 3 if any(row.missing_variants for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
