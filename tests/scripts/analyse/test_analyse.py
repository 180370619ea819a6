"""The contract for trainings by PyTorch: `hvd_bench analyse` writes a store from samples, and all commands read it.

The samples are made up (samples_text.py), and a training by hvd_bench of the same network is in the same store.
"""

from __future__ import annotations

import json
import os
import unittest
from pathlib import Path

import samples_text

from harness import SharedFolderTest, alter, call, execute, refused
from synthetic_store import REPOSITORY

from hvdb.judge import efficiency
from hvdb.read import runs
from hvdb.show import plot_waterfall, tables

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
PROFILE = REPOSITORY / "tests" / "cli" / "sleep.replay"  # of resnet50, batch 4: sleeps in place of computing
TRAINING = ["--replay", PROFILE, "--ranks", 2, "--num-iters", 4, "--num-warmup-batches", 1, "--quiet"]


@unittest.skipUnless(PROGRAM.is_file(), f"the program is not built ({PROGRAM})")
class AnalyseTest(SharedFolderTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.said = cls.analyse(cls.db, samples_text.text()).stdout
        cls.both = cls.folder / "both.db"
        cls.analyse(cls.both, samples_text.text())
        execute(PROGRAM, *TRAINING, "--efficiency", "--db", cls.both, code=0)
        cls.runs = runs.load([cls.db])

    @classmethod
    def analyse(cls, db: Path, text: str, code: int = 0) -> object:
        file = cls.folder / "samples.txt"
        file.write_text(text, encoding="utf-8")
        return execute(PROGRAM, "analyse", file, "--db", db, code=code)

    def full(self) -> runs.Run:
        (run,) = (run for run in self.runs if run.phase == "full")
        return run

    def test_rows_by_hand(self) -> None:
        parts = self.full().decomposition
        self.assertEqual(set(parts), set(samples_text.ROWS))
        for name, seconds in samples_text.ROWS.items():
            self.assertAlmostEqual(parts[name].seconds, seconds, places=12, msg=name)
        self.assertAlmostEqual(sum(part.fraction.value for part in parts.values()), 1.0, places=12)
        self.assertEqual(set(parts) - set(plot_waterfall.STEPS), {"efficiency"})
        self.assertEqual(set(parts) - set(tables.COMPONENTS), set())
        self.assertIn("waiting for input             4.4 %", self.said)
        self.assertIn("2 x one rank alone, always fed): efficiency 44.4 %", self.said)
        late = "rank 1 on n2: its steps take 220 ms longer than the others' in phase none, 200 ms of it in forward and"
        self.assertIn(late, self.said)
        self.assertIn(late, self.full().fact("measurement.late_rank"))

    def test_columns_and_facts(self) -> None:
        found = {run.phase: (run.device, run.schedule, run.comm, run.data_plane, run.world_size) for run in self.runs}
        self.assertEqual(found["solo"], ("torch", "none", "solo", "none", 1))
        self.assertEqual(found["none"], ("torch", "none", "gloo", "none", 2))
        self.assertEqual(found["full"], ("torch", "ddp", "gloo", "gloo", 2))
        for run in self.runs:
            self.assertEqual((run.status, run.batch_size, run.nodes), ("complete", 4, 1 if run.phase == "solo" else 2))
            self.assertEqual(run.measured_steps, 24)
            self.assertLessEqual(
                set(run.samples), {f"{part}_seconds" for part in ("step", "input", "compute", "exposed", "update")}
            )
            fingerprint = {key for key, fact in run.provenance.items() if fact.in_fingerprint}
            self.assertEqual(fingerprint, {"torch.version", "cpu.model"})
            self.assertNotIn("host.name", run.provenance, "the analysing machine did not train")

    def test_efficiency_keeps_it_apart_from_a_training_of_that_name(self) -> None:
        cells = [cell for cell in efficiency.cells(runs.load([self.both])) if cell.kind == "full"]
        self.assertEqual([cell.configuration["device"] for cell in cells], ["torch", "replay"])
        self.assertEqual([cell.sessions for cell in cells], [1, 1])
        self.assertAlmostEqual(cells[0].efficiency.value, 0.2 / 0.45, places=12)
        _, out, _ = call("efficiency", self.both, code=0)
        (line,) = (line for line in out.splitlines() if "ddp" in line)
        self.assertRegex(line, r"^ResNet-50, trained by PyTorch .* 44\.4 \[44\.4, 44\.4\]")
        self.assertIn("never waits for its input", out)

    def test_report_and_plot_show_the_row(self) -> None:
        _, out, _ = call("report", self.both, code=0)
        self.assertIn("| waiting for input | 4.4 | 4.4 to 4.4 | 20.0 |", out)
        self.assertRegex(out, "ResNet-50 on 2 ranks .*waiting for input is 4.4 % .*load faster")
        self.assertNotIn("--timeline-filename", "".join(line for line in out.splitlines() if "PyTorch" in line))
        plots = self.folder / "plots"
        call("plot", self.both, "--out", plots, code=0)
        self.assertTrue((plots / "waterfall.png").exists())
        self.assertEqual(plot_waterfall.rows([self.full()])[:2], ["interference", "input"])
        *_, (_, _, reached) = plot_waterfall.levels(self.full(), plot_waterfall.rows([self.full()]))
        self.assertAlmostEqual(reached, 100 * 0.2 / 0.45, places=9)

    def test_ranks_names_the_slow_one(self) -> None:
        _, out, _ = call("ranks", self.db, "--phase", "none", code=1)
        self.assertRegex(out, r"rank 1 \(host n2, torch\) is 100.0 % .*slower")

    def test_history_has_a_series_of_its_own(self) -> None:
        _, out, _ = call("history", self.both, code=3)
        self.assertEqual(out.count("INCONCLUSIVE: 0 earlier sessions"), 2)

    def test_beside_its_replay(self) -> None:
        said = r"loses 44\.7 % .*: waiting for input 0\.4 % .*, the network 2\.3 % .*, the framework 42\.1 %"
        store = REPOSITORY / "results" / "recorded" / "2026-11-29-torch-efficiency" / "mine.db"
        _, out, _ = call("efficiency", store, code=0)
        self.assertRegex(out, f"note: mine on 2 ranks {said}")
        call("report", store, "-o", self.folder / "beside", code=0)
        self.assertRegex((self.folder / "beside").read_text(), f"(?m)^- mine .*{said}")

    def test_export_has_the_row(self) -> None:
        jsonl, prometheus = self.folder / "x.jsonl", self.folder / "x.prom"
        call("export", self.both, "--jsonl", jsonl, "--prometheus", prometheus, code=0)
        lines = [json.loads(line) for line in jsonl.read_text().splitlines()]
        self.assertEqual(len(lines), 6)
        (full,) = (line for line in lines if line["device"] == "torch" and line["phase"] == "full")
        self.assertAlmostEqual(full["parts"]["input"]["ratio"], 0.02 / 0.45, places=12)
        self.assertEqual(sum("input" in line["parts"] for line in lines), 1)
        self.assertRegex(prometheus.read_text(), '(?m)^.*"input".*device="torch"|device="torch".*"input"')

    def test_compare_and_gate(self) -> None:
        """A gate measures its own pairs, so its store holds no other training."""
        kept = self.db.read_bytes()
        refused("which no gate made; name a new store", "gate", "--b", "--ranks 2", "--pairs", 6, "--db", self.db)
        self.assertEqual(self.db.read_bytes(), kept)
        other = self.folder / "other.db"
        self.analyse(other, samples_text.text(steps=5))
        _, out, _ = call("compare", self.db, other, code=3)
        self.assertIn("INCONCLUSIVE", out)
        own = self.folder / "own.db"
        execute(PROGRAM, *TRAINING, "--efficiency", "--db", own, code=0)
        refused("have no configuration in common", "compare", self.db, own, code=4)

    def test_predict_and_rerun_refuse_it(self) -> None:
        asked = ["--profile", PROFILE, "--ranks", 8, "--program", PROGRAM]
        refused("no session with the phases", "predict", self.db, *asked, code=3)
        _, _, err = call("rerun", self.full().uuid, self.db, "--execute", code=2)
        self.assertIn("is not run again: it computed what a training under PyTorch had measured", err)

    def test_readers_check_the_words(self) -> None:
        for column, value in (("device", "jax"), ("schedule", "fsdp")):
            odd = self.folder / f"{value}.db"
            self.analyse(odd, samples_text.text())
            alter(odd, f"UPDATE run SET {column} = '{value}'")
            refused(f"CHECK constraint failed: {column} IN", "efficiency", odd)

    def test_without_input_there_is_no_row(self) -> None:
        plain = self.folder / "plain.db"
        done = self.analyse(plain, samples_text.text(waits=False))
        self.assertNotIn("input", done.stdout)
        self.assertNotIn("always fed", done.stdout)
        (full,) = (run for run in runs.load([plain]) if run.phase == "full")
        self.assertNotIn("input", full.decomposition)
        self.assertNotIn("input_seconds", full.samples)

    def test_an_incomplete_training_is_stored_as_far_as_it_went(self) -> None:
        cut = self.folder / "cut.db"
        done = self.analyse(cut, samples_text.text(rounds=5, incomplete=True))
        self.assertIn("caution: incomplete, what was measured until then: rank 1 on n2 was lost", done.stdout)
        found = {run.phase: run for run in runs.load([cut])}
        self.assertEqual(
            {phase: run.measured_steps for phase, run in found.items()}, {"solo": 24, "none": 20, "full": 20}
        )
        self.assertEqual({run.status_reason for run in found.values()}, {"rank 1 on n2 was lost"})
        self.assertAlmostEqual(found["full"].decomposition["input"].seconds, 0.02, places=12)
        refused("incomplete", "efficiency", cut)
        self.assertIn("44.4", call("efficiency", "--incomplete", cut, code=0)[1])

    def test_bad_input_is_one_line_and_stores_nothing(self) -> None:
        kept = self.db.read_bytes()
        for text, pattern in (
            ("", "samples.txt:1: the text ends here"),
            (samples_text.text().replace("end 6", "end 7"), r"samples.txt:\d+: the text has 6 rounds"),
            (samples_text.text().replace("0.19 0.19", "0.19 \x1b[2J"), r"samples.txt:\d+: '\\x1b\[2J' is not a number"),
        ):
            done = self.analyse(self.db, text, code=2)
            self.assertRegex(done.stderr, rf"^hvd_bench: error: .*{pattern}.*\n$")
            self.assertEqual(done.stdout, "")
        for words in (["x"], ["x", "y", "--db", "z"], ["--db", "z"], ["x", "--db", "z", "--ranks", "2"]):
            done = execute(PROGRAM, "analyse", *words, code=2)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = execute(PROGRAM, "analyse", self.folder / "absent", "--db", self.db, code=2)
        self.assertRegex(done.stderr, "absent: cannot be read: No such file")
        self.assertEqual(self.db.read_bytes(), kept)

    def test_standard_input(self) -> None:
        piped = self.folder / "piped.db"
        execute(PROGRAM, "analyse", "-", "--db", piped, input=samples_text.text(), code=0)
        self.assertEqual(len(runs.load([piped])), 3)
        done = execute(PROGRAM, "analyse", "-", "--db", piped, input="x\n", code=2)
        self.assertIn("standard input:1: is not a text of samples", done.stderr)


if __name__ == "__main__":
    unittest.main()
