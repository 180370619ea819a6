"""Tests the recorded steps that ship with the program: --replay NAME, wherever the program lies."""

import pathlib
import shutil
import unittest

from program import PROGRAM, SLEEPING, ProgramTest, Result, execute, run

STEPS = pathlib.Path(__file__).resolve().parents[2] / "results/steps"
# name -> parameters. GPT-2's smallest model has 124M; SmolLM-135M has 134,515,008 (docs/examples/torch/llama.py).
SHIPPED = {"gpt2": 124_439_808, "llama": 134_515_008}
FEW = ["--replay-shrink", "4096", "--num-warmup-batches", "1", "--num-iters", "1"]
COSTS = "hvd-costs 2\nseed 7\nsteps 1\nblock 10\ndevice host\nworld 1 1\ndraw\nall_reduce 1 0.1\nend 1\n"


def fnv(content: bytes) -> str:
    """Returns FNV-1a with 64 bits as 16 hexadecimal digits."""
    state = 0xCBF29CE484222325
    for byte in content:
        state = (state ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{state:016x}"


class Shipped(ProgramTest):
    def here(self, *arguments: str, program: object = PROGRAM) -> Result:
        """Runs the program in the test's folder."""
        return execute(["env", "-C", str(self.folder), str(program), *arguments])

    def test_a_name_plays_the_recorded_step(self) -> None:
        for name in SHIPPED:
            db = self.folder / f"{name}.db"
            run("--replay", name, *FEW, "--db", str(db)).ended_with(0)
            self.assertEqual(self.query("SELECT model FROM run", db), [(f"{name}-div4096",)])
            hashed = "SELECT value, in_fingerprint FROM provenance WHERE key = 'replay.profile'"
            self.assertEqual(self.query(hashed, db), [(fnv((STEPS / f"{name}.replay").read_bytes()), 1)])

    def test_the_files(self) -> None:
        self.assertEqual({file.stem: file.suffix for file in STEPS.glob("*.replay")}, dict.fromkeys(SHIPPED, ".replay"))
        self.assertLess(sum(file.stat().st_size for file in STEPS.iterdir()), 200_000)
        for name, parameters in SHIPPED.items():
            lines = [line.split() for line in (STEPS / f"{name}.replay").read_text(encoding="utf-8").splitlines()]
            self.assertEqual(sum(int(line[1]) for line in lines if line[0] == "gradient"), parameters)
            times = [float(line[1]) for line in lines if line[0] in ("backward_end_seconds", "update_seconds")]
            self.assertLessEqual(sum(times), 0.4, name)

    def test_a_file_of_that_name_is_played_by_its_path(self) -> None:
        shutil.copy(SLEEPING[1], self.folder / "gpt2")
        shutil.copy(SLEEPING[1], self.folder / "mine")
        told = "gpt2 is the step that ships with hvd_bench, not the file gpt2 of this folder, which is ./gpt2\n"
        for named, model, notes in (("gpt2", "gpt2-div4096", 1), ("./gpt2", "resnet50", 0), ("mine", "resnet50", 0)):
            out = self.here("--replay", named, *FEW, "--no-db").ended_with(0).out
            self.assertIn(f"  replaying  {model}", out)
            self.assertEqual(out.count(told), notes, out)

    def test_an_unknown_name_lists_the_steps(self) -> None:
        line = "{}: there is no such file, and the steps that ship are gpt2, llama{}"
        for named, near in (("gpt3", " (did you mean gpt2?)"), ("-", ""), ("mixtral", "")):
            self.assertIn(line.format(named, near), self.refused(run(f"--replay={named}"), 2))
        self.assertIn(line.format("lama", " (did"), self.refused(self.here("coll", "--from-replay", "lama"), 2))
        self.assertIn("gpt2.replay: cannot read the replay file", self.refused(self.here("--replay", "gpt2.replay"), 2))

    def test_the_steps_lie_beside_the_program(self) -> None:
        (self.folder / "bin").mkdir()
        moved = shutil.copy(PROGRAM, self.folder / "bin")
        line = self.refused(self.here("--replay", "llama", *FEW, "--no-db", program=moved), 2, "ships with hvd_bench")
        steps = self.folder.resolve() / "share/hvd_bench/steps"
        self.assertIn(f"llama: this recorded step ships with hvd_bench, but {steps}/llama.replay is not there", line)
        shutil.copytree(STEPS, steps)
        (self.folder / "link").symlink_to(moved)
        for program in (moved, self.folder / "link"):
            self.here("--replay", "llama", *FEW, "--no-db", program=program).ended_with(0)

    def test_collectives_and_simulations_take_a_name(self) -> None:
        # hvd_bench reads this variable when it has read the step, and so measures nothing.
        env = {"HVD_MAX_CPU_ISA": "refused"}
        self.refused(run("coll", "--from-replay", "llama", "-J", "llama", env=env), 2, "HVD_MAX_CPU_ISA")
        (self.folder / "costs").write_text(COSTS)
        self.here("simulate", "--replay", "gpt2", "--bucket-mb", "1000", "--costs", "costs").ended_with(0)


if __name__ == "__main__":
    unittest.main()
