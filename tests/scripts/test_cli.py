"""The entry points as a person runs them: exit codes, one clear line per fault, rerun end to end."""

from __future__ import annotations

import json
import shlex
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

from synthetic_store import REPOSITORY, SessionSpec, make

from hvdb import rerun

# Stands in for hvd_bench: writes a store to --db, as fast as argv says.
FAKE_BENCH = """
    import os, sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from synthetic_store import SessionSpec, make
    assert os.environ["KNOB"] == "a b", "the assignment of the record is lost"
    assert sys.argv.count("--db") == 1 and "--json" not in sys.argv
    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    make(Path(options["--db"]), SessionSpec(noise=0.001, full=float(options["--full"]),
                                            provenance={{"cpu.model": (options["--cpu"], 1)}}), seed=5)
"""


def run(command: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(REPOSITORY / "scripts" / command), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


class CommandTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = Path(scratch.name)
        self.db = self.folder / "a.db"

    def assert_fault(self, done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, message)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, f"one line, no traceback: {done.stderr}")

    def test_every_command_has_help_and_refuses_nonsense(self) -> None:
        for command in ("efficiency", "plot", "merge", "rerun", "report"):
            with self.subTest(command):
                shown = run(command, "--help")
                self.assertEqual(shown.returncode, 0, shown.stderr)
                self.assertIn("exit codes", shown.stdout)
                self.assertEqual(run(command, "--no-such-option").returncode, 2)

    def test_efficiency_table_and_json(self) -> None:
        make(self.db, SessionSpec(solo=1.0, full=1.25, noise=0.0))
        table = run("efficiency", self.db)
        self.assertEqual(table.returncode, 0, table.stderr)
        self.assertIn("80.0 [79.4, 80.6]", table.stdout, "the interval that the program stored")
        self.assertIn("published", table.stdout)
        document = json.loads(run("efficiency", self.db, "--json").stdout)
        self.assertAlmostEqual(document["cells"][1]["efficiency"]["value"], 0.8)

    def test_faults_of_input(self) -> None:
        self.assert_fault(run("efficiency", self.folder / "no.db"), 2, "no such file")
        make(self.db)
        self.assert_fault(run("efficiency", self.db), 2, "nothing to show")
        self.db.write_bytes(b"SQLite format 3\x00" + bytes(500))
        self.assert_fault(run("efficiency", self.db), 2, "damaged|another program")

    def test_not_comparable_is_exit_code_4(self) -> None:
        made = make(self.db, SessionSpec(), SessionSpec(fingerprint="b"), SessionSpec(traced=1))
        self.assert_fault(run("efficiency", self.db), 4, "different fingerprints")
        self.assertEqual(run("efficiency", self.db, "--mix-fingerprints").returncode, 0)
        self.assertEqual(run("efficiency", self.db, "--traced").returncode, 0)
        self.assert_fault(run("efficiency", self.db, "--run", made[0]["full"], "--run", made[2]["full"]), 4, "traced")

    def test_simulated_is_refused_beside_measured(self) -> None:
        made = make(self.db, SessionSpec(), SessionSpec(origin="simulated"))
        only = run("efficiency", self.db)
        self.assertEqual(only.returncode, 0)
        self.assertIn("left out: 3 simulated", only.stdout)
        self.assertIn("simulated", run("efficiency", self.db, "--origin", "simulated").stdout.splitlines()[2])
        ids = [made[0]["full"], made[1]["full"]]
        self.assert_fault(run("efficiency", self.db, "--run", ids[0], "--run", ids[1]), 4, "simulated and measured")

    def test_a_replay_is_never_shown_as_training(self) -> None:
        make(self.db, SessionSpec(model="resnet101-div64", columns={"device": "replay"}))
        for command, line in (("efficiency", 2), ("report", None)):
            shown = run(command, self.db)
            self.assertEqual(shown.returncode, 0, shown.stderr)
            where = shown.stdout if line is None else shown.stdout.splitlines()[line]
            self.assertIn("ResNet-101 with 1/64 of its gradients, replayed compute", where)
            self.assertNotIn("Pascal", shown.stdout, "no published figure of the whole network beside it")

    def test_merge_exit_codes(self) -> None:
        make(self.db, SessionSpec())
        out = self.folder / "out.db"
        self.assertEqual(run("merge", "-o", out, self.db).returncode, 0)
        self.change("UPDATE run SET final_loss = 3")
        self.assert_fault(run("merge", "-o", out, self.db), 4, "two contents")
        self.assert_fault(run("merge", "-o", out, self.folder / "absent"), 2, "no such file")

    def test_report_and_plots(self) -> None:
        make(self.db, SessionSpec())
        page = run("report", self.db)
        self.assertEqual(page.returncode, 0, page.stderr)
        for section in ("## Scaling efficiency", "## Where the step time goes", "## Memory", "## Provenance"):
            self.assertIn(section, page.stdout)
        drawn = run("plot", self.db, "--out", self.folder / "plots", "--format", "svg")
        self.assertEqual(drawn.returncode, 0, drawn.stderr)
        self.assertEqual(sorted(p.name for p in (self.folder / "plots").iterdir()), ["scaling.svg", "waterfall.svg"])

    def change(self, sql: str, *values: object) -> None:
        connection = sqlite3.connect(self.db)
        with connection:
            connection.execute(sql, values)
        connection.close()

    def fact(self, key: str, value: str) -> None:
        """Of all runs; it is not in the fingerprint."""
        self.change("INSERT INTO provenance SELECT uuid, ?, ?, 0 FROM run", key, value)

    def record(self, full: float, cpu: str) -> str:
        """A store whose session was made by the stand-in; returns the id of its full run."""
        fake = self.folder / "fake bench.py"
        fake.write_text(textwrap.dedent(FAKE_BENCH).format(tests=str(Path(__file__).parent)), encoding="utf-8")
        command = (
            f"cd {shlex.quote(str(self.folder))} && KNOB='a b' {shlex.quote(sys.executable)} 'fake bench.py' "
            f"--full {full} --cpu {shlex.quote(cpu)} --db old.db --json"
        )
        (made,) = make(self.db, SessionSpec(noise=0.001, provenance={"cpu.model": ("Test CPU", 1)}))
        self.change("UPDATE session SET command_line = ?", command)
        return made["full"]

    def test_rerun_shows_the_command(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        done = run("rerun", run_id[:8], self.db)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--full 1.25", done.stdout)
        self.assert_fault(run("rerun", "ffffffff", self.db), 2, "no run starts with")

    def test_rerun_executes_and_compares(self) -> None:
        done = run("rerun", self.record(2.5, "Test CPU"), self.db, "--execute")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"ratio now / then: 0\.(49|50)\d \[0\.")
        self.assertIn("reduced gradients: bit-identical", done.stdout)

    def test_rerun_compares_sums_only_after_equal_steps_of_every_phase(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        self.change("UPDATE run SET measured_steps = measured_steps - 1 WHERE phase = 'none'")
        done = run("rerun", run_id, self.db, "--execute")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"reduced gradients: not compared.*none \d+, solo \d+ then, ")

    def test_rerun_elsewhere_is_not_comparable(self) -> None:
        done = run("rerun", self.record(1.25, "Other CPU"), self.db, "--execute")
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("differs (can change the result): cpu.model: 'Test CPU' then, 'Other CPU' now", done.stdout)

    def test_rerun_that_fails_says_so(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        (self.folder / "fake bench.py").write_text("raise SystemExit(7)", encoding="utf-8")
        self.assert_fault(run("rerun", run_id, self.db, "--execute"), 2, "exit code 7")

    def test_what_cannot_change_the_result_is_said_to_be_so(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        self.fact("git.commit", "old")
        done = run("rerun", run_id, self.db, "--execute")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("differs (not in the fingerprint): git.commit: 'old' then, 'None' now", done.stdout)

    def test_a_recorded_figure_is_shown_as_it_would_run_here(self) -> None:
        db = REPOSITORY / "results" / "recorded" / "2026-11-21-2cores" / "quickstart.db"
        shown = run("rerun", "c6eb28e8", db)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        commit = "dc727fc9deb4891741d6d3d84b282528d5dd14f6"
        built = f"\nbuilt from: commit {commit}, clean (git checkout {commit} && scripts/build release)\n"
        self.assertIn(built, shown.stdout)
        program = self.script("my bench", "")
        shown = run("rerun", "c6eb28e8", db, "--directory", self.folder, "--program", program, "--db", "/n.db")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        options = "--model inception3 --efficiency --threads 1 --batch-size 4 --max-time 75"
        self.assertIn(f"\nthere: cd {self.folder} && mpirun -n 2 '{program}' {options} --db /n.db\n", shown.stdout)
        self.assert_fault(run("rerun", "c6eb28e8", db, "--program", "/none"), 2, "--program: no program at /none: ")

    def test_a_record_whose_program_is_elsewhere_now_runs_again(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        command = "cd /gone && env KNOB='a b' bin/hvd_bench --full 1.25 --cpu 'Test CPU' --db old.db"
        self.change("UPDATE session SET command_line = ?", command)
        self.assert_fault(run("rerun", run_id, self.db, "--program", "/bin/true"), 2, "does not name its program")
        self.fact("build.binary", "/gone/bin/hvd_bench")
        self.fact("command.directory", "/gone")
        done = run("rerun", run_id, self.db, "--execute")
        self.assertIn("; if its directory is elsewhere now, say where with --directory; if its program", done.stderr)
        here = self.script("here", f"#!/bin/sh\nexec {shlex.quote(sys.executable)} 'fake bench.py' \"$@\"\n")
        done = run("rerun", run_id, self.db, "--execute", "--directory", self.folder, "--program", here)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"ratio now / then: ")

    def script(self, name: str, text: str) -> Path:
        file = self.folder / name
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
        return file

    def test_output_options_of_the_record_are_replaced(self) -> None:
        line = "cd '/a b' && X=1 mpirun -n 2 ./hvd_bench --model vgg16 --db=old.db --json --record_replay t --seed 3"
        self.assertEqual(
            rerun.command_with_store(line, Path("/n/new.db")),
            "cd '/a b' && X=1 mpirun -n 2 ./hvd_bench --model vgg16 --seed 3 --db /n/new.db",
        )

    def test_a_traced_run_is_traced_again_beside_its_new_store(self) -> None:
        for traced in ("hvd_bench --timeline_filename=t", "hvd_bench --timeline-filename t"):
            self.assertEqual(
                rerun.command_with_store(traced, Path("/n/a b.db")),
                "hvd_bench --timeline-filename '/n/a b.db.trace' --db '/n/a b.db'",
            )
        self.assertEqual(
            rerun.command_with_store("env HOROVOD_TIMELINE=t hvd_bench", Path("/n/new.db")),
            "env HOROVOD_TIMELINE=/n/new.db.trace hvd_bench --db /n/new.db",
        )

    def test_a_record_can_be_run_in_another_directory(self) -> None:
        for line in ("cd /gone && bin/hvd_bench --seed 3", "bin/hvd_bench --seed 3"):
            self.assertEqual(
                rerun.command_with_store(line, Path("/n.db"), Path("/my checkout")),
                "cd '/my checkout' && bin/hvd_bench --seed 3 --db /n.db",
            )


if __name__ == "__main__":
    unittest.main()
