"""Tests `hvd_bench simulate`: schedules worked by hand, equal bytes, plans of real runs, and hostile files."""

import json
import pathlib
import shlex
import unittest

from program import MPIRUN, PROGRAM, SLEEPING, TRAINING, ProgramTest, Result, execute, needs_mpi, run

RECORDED = pathlib.Path(__file__).resolve().parents[2] / "results/recorded/2026-11-22-h200-second/replay"
# Two gradients of 400 bytes are ready after 10 and 20 ms; the update takes 1 ms.
PROFILE = """hvd-replay 2
model two
unit tokens
units_per_step 1
device none
compute_type fp32
source_run none
backward_end_seconds 0.02
update_seconds 0.001
gradient 100 0.01 0.01 a
gradient 100 0.02 0.02 b
end 2
"""
KEYS = "ranks draw step exposed stragglers control slowed overlapped update cycles batches messages".split()


def costs(*worlds: str, steps: int = 1, device: str = "host", rest: str = "") -> str:
    head = f"hvd-costs 2\nseed 7\nsteps {steps}\nblock 10\ndevice {device}\n{rest}"
    return head + "".join(worlds) + f"end {len(worlds)}\n"


class SimulateTest(ProgramTest):
    """A test case with a profile of two gradients."""

    def setUp(self) -> None:
        super().setUp()
        self.profile = self.folder / "two.replay"
        self.profile.write_text(PROFILE)
        self.costs = self.folder / "costs.txt"

    def simulate(self, text: str, *options: str, profile: object = None) -> Result:
        self.costs.write_text(text)
        words = ["--replay", str(profile or self.profile), "--costs", str(self.costs), *options]
        return execute([PROGRAM, "simulate", *words])

    def lines(self, result: Result) -> list[dict]:
        self.assertEqual(result.ended_with(0).err, "")
        return [json.loads(line, parse_constant=self.fail) for line in result.out.splitlines()]

    def assert_values(self, found: dict, **expected: float) -> None:
        for key, value in expected.items():
            self.assertAlmostEqual(found[key], value, places=12, msg=f"{key} of {found}")


class Schedules(SimulateTest):
    def test_two_buckets_by_hand(self) -> None:
        """Each reduction takes 4 ms: from 10 to 14 ms beside the compute, and from 20 to 24 ms."""
        text = costs("world 1 1\ndraw\nall_reduce 1 0.004\n")
        (line,) = self.lines(self.simulate(text, "--bucket-mb", "0"))
        self.assertEqual(list(line), [*KEYS, "plan_hash"])
        self.assert_values(line, ranks=1, draw=0, step=0.025, exposed=0.004, stragglers=0, overlapped=0.004, slowed=0)
        self.assert_values(line, update=0.001, cycles=0, batches=2, control=0)
        (line,) = self.lines(self.simulate(text))
        self.assert_values(line, step=0.025, overlapped=0, batches=1)

    def test_two_ranks_of_unlike_speed_by_hand(self) -> None:
        """The second rank takes 30 ms, so both end their reductions at 34 ms. The first one waits for 14 ms."""
        node = "node\nrank 1\nrank 1.5\n"
        text = costs("world 2 2\ndraw\nall_reduce 1 0.004\n", rest=node)
        (line,) = self.lines(self.simulate(text, "--bucket-mb", "0"))
        self.assert_values(line, step=0.0355, exposed=0.004, stragglers=0.005, update=0.00125)

    def test_every_draw_has_its_line_in_order(self) -> None:
        draws = "draw\nall_reduce 1 0.004\n" + "draw\nall_reduce 1 0.006\ncompute 2\nshift 0.001\n"
        lines = self.lines(self.simulate(costs("world 4 2\n" + draws, "world 2 2\n" + draws, steps=3)))
        self.assertEqual([(line["ranks"], line["draw"]) for line in lines], [(4, 0), (4, 1), (2, 0), (2, 1)])
        # Twice as slow, the last gradient is ready after 2 * 21 ms.
        self.assert_values(lines[1], step=0.042 + 0.006 + 0.002)

    def test_the_other_schedules(self) -> None:
        tables = "all_reduce 1 0.004\nreduce_scatter 1 0.003\nall_gather 1 0.002\ncycle 0.001\n"
        text = costs("world 2 1\ndraw\n" + tables)
        (line,) = self.lines(self.simulate(text, "--schedule", "sharded"))
        self.assert_values(line, step=0.02 + 0.003 + 0.001 / 2 + 0.002)
        (line,) = self.lines(self.simulate(text, "--schedule", "negotiated"))
        self.assert_values(line, step=0.02 + 0.001 + 0.004 + 0.001, cycles=2, batches=2)
        self.assertNotIn("plan_hash", line)
        (line,) = self.lines(self.simulate(text, "--schedule", "none"))
        self.assert_values(line, step=0.021)

    def test_costs_from_a_pipe(self) -> None:
        self.costs.write_text(costs("world 1 1\ndraw\nall_reduce 1 0.004\n"))
        command = shlex.join([PROGRAM, "simulate", "--replay", str(self.profile), "--costs", "-"])
        (line,) = self.lines(execute(["sh", "-c", f"cat {shlex.quote(str(self.costs))} | {command}"]))
        self.assert_values(line, step=0.025)
        self.refused(execute(["sh", "-c", f"echo | {command}"]), 2, "standard input:1: ")

    def test_the_plan_is_that_of_a_run(self) -> None:
        def planned(*words: str) -> str:
            return json.loads(run(*words, "--json").ended_with(0).out)["runs"][0]["plan_hash"]

        text = costs("world 1 1\ndraw\nall_reduce 1 0.004\n")
        options = ["--schedule", "static", "--bucket-mb", "0.1"]
        (line,) = self.lines(self.simulate(text, *options, profile=SLEEPING[1]))
        words = ["--num-iters", "1", "--num-warmup-batches", "0", *options]
        self.assertEqual(line["plan_hash"], planned(*SLEEPING, *words))
        recorded = self.folder / "vgg16.replay"
        of_run = planned(*TRAINING, "--device", "cpu", "--record-replay", str(recorded), *options)
        aligned = costs("world 1 1\ndraw\nall_reduce 1 0.004\n", rest="align 32\n")
        (line,) = self.lines(self.simulate(aligned, *options, profile=recorded))
        self.assertEqual(line["plan_hash"], of_run)

    def test_recorded_profiles_on_512_ranks(self) -> None:
        node = "node\n" + "".join(f"rank {' '.join(str(1 + (r * s) % 7 / 100) for s in range(40))}\n" for r in range(8))
        reduce = "all_reduce 1024 3e-5 0.9 1 1.3\nall_reduce 1048576 1e-4\nall_reduce 134217728 0.02\n"
        world = "world 512 8\n" + f"draw\n{reduce}cycle 1e-5\ncopy 1e-11\nslowdown 0.05\n" * 2
        for profile in sorted(RECORDED.glob("*.txt")):
            for device, schedule in (("host", "static"), ("stream", "static"), ("stream", "negotiated")):
                text = costs(world, steps=5, device=device, rest=node)
                result = self.simulate(text, "--schedule", schedule, "--allreduce-dtype", "fp16", profile=profile)
                for line in self.lines(result):
                    self.assertGreater(line["step"], 0.01, (profile, line))
                    self.assertLess(line["step"], 0.2, (profile, line))
                again = self.simulate(text, "--schedule", schedule, "--allreduce-dtype", "fp16", profile=profile)
                self.assertEqual(result.out, again.out)

    @needs_mpi
    def test_one_rank_of_a_launch_speaks(self) -> None:
        self.costs.write_text(costs("world 1 1\ndraw\nall_reduce 1 0.004\n"))
        words = ["simulate", "--replay", str(self.profile), "--costs", str(self.costs)]
        result = execute([str(MPIRUN), "-n", "2", PROGRAM, *words]).ended_with(0)
        self.assertEqual(len(result.out.splitlines()), 1, result)


class Hostile(SimulateTest):
    """Every text ends in one printable line that names the file and, where there is one, the line."""

    def told(self, text: str, *words: str, options: tuple[str, ...] = (), profile: object = None) -> None:
        line = self.refused(self.simulate(text, *options, profile=profile), 2, *words)
        self.assertTrue(line.isprintable(), line)
        self.assertLess(len(line), 600)

    def test_texts(self) -> None:
        good = costs("world 2 1\ndraw\nall_reduce 4096 0.004\ncycle 1e-5\n")
        for at, wrong in ((6, "nan"), (6, "inf"), (8, "-1"), (8, "1e308"), (9, "9" * 10**7), (8, "\x1b[31m\u202e\0")):
            lines = good.splitlines(keepends=True)
            lines[at - 1] = lines[at - 1].rpartition(" ")[0] + f" {wrong}\n"
            self.told("".join(lines), f"{self.costs}:{at}: ")
        self.told(good[:-6], f"{self.costs}:10: ", "write all of it")
        self.told(costs(*["world 2 1\n"] * 10**6), f"{self.costs}:7: ", "'world' cannot stand here; possible: draw")
        self.told("x" * 10**8, f"{self.costs}: more than 64 MiB")
        self.told("x" * 10**7, f"{self.costs}:1: ")
        self.told(good.replace("costs 2", "costs 1"), f"{self.costs}:1: ", "the first line must be 'hvd-costs 2'")
        head, *rest = good.partition("world")
        self.told("".join([head, "pacing tick\n", *rest]), f"{self.costs}:6: ", "'pacing' cannot stand here")

    def test_too_much_work(self) -> None:
        draws = "draw\nall_reduce 1 0.004\n" * 1000
        self.told(costs("world 1 1\ndraw\n", "world 65536 1\n" + draws, steps=10000), f"{self.costs}:8: ", "fewer")

    def test_what_the_schedule_needs(self) -> None:
        text = costs("world 2 1\ndraw\nall_reduce 4096 0.004\n")
        self.told(text, f"{self.costs}:7: ", "no reduction was measured", options=("--schedule", "sharded"))
        sharded = ("--schedule", "sharded", "--allreduce-dtype", "fp16")
        self.told(text, "--schedule sharded exchanges fp32", options=sharded)
        self.told(text, "cache of 1 request", options=("--schedule", "negotiated", "--cache-capacity", "1"))

    def test_files_that_are_none(self) -> None:
        self.told(costs(), "No such file", profile=self.folder / "none.replay")
        self.told(costs(), "Is a directory", profile=self.folder)
        self.told(costs(), "/dev/zero: more than 4 MiB", profile="/dev/zero")
        self.profile.write_text("hvd-replay 1\nbatch_size " + "9" * 10**6 + "\n")
        self.told(costs(), f"{self.profile}:2: ")

    def test_command_lines(self) -> None:
        for words, texts in (
            ([], ["--replay FILE and --costs FILE"]),
            (["--replay", "x", "--costs", "y", "--model", "vgg16"], ["'--model'", "simulate --help"]),
            (["--bucket-mb", "-1"], ["--bucket-mb: '-1'"]),
            (["--costs", ""], ["--costs: the file's name is empty"]),
        ):
            self.refused(execute([PROGRAM, "simulate", *words]), 2, *texts)
        shown = execute([PROGRAM, "simulate", "--help"]).ended_with(0).out
        for option in ("--replay FILE", "--costs FILE", "--schedule NAME", "--bucket-mb MIB"):
            self.assertIn(option, shown)
        self.assertIn("simulate", execute([PROGRAM, "--help"]).out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
