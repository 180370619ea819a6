"""Runs the entry points as a user does: exit codes, one clear line per fault, and a whole rerun."""

from __future__ import annotations

import argparse
import json
import shlex
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

from harness import SCRIPTS, FolderTest, executable, execute
from synthetic_store import REPOSITORY, SessionSpec, make

from hvdb import commands
from hvdb.read import recorded_command

# Stands in for hvd_bench. Writes a store to --db with the speed and the processor that its options give.
FAKE_BENCH = """#!{python}
    import os, sys
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from synthetic_store import SessionSpec, make
    assert os.environ["OMP_PLACES"] == "cores (2)", "the variable of the record is lost"
    assert not os.environ.get("LD_AUDIT"), "a variable that is not on the list"
    options = dict(word.split("=", 1) for word in sys.argv[1:])
    assert list(options) == ["--ranks", "--learning-rate", "--label", "--db"], options
    make(Path(options["--db"]), SessionSpec(noise=0.001, full=float(options["--learning-rate"]),
                                            provenance={{"cpu.model": (options["--label"][4:], 1)}}), seed=5)
"""


def run(command: str, *arguments: object, code: int | None = None) -> subprocess.CompletedProcess[str]:
    return execute(SCRIPTS / command, *arguments, code=code)


class CommandTest(FolderTest):
    def assert_fault(self, done: subprocess.CompletedProcess[str], code: int, message: str) -> None:
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, message)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, f"one line, no traceback: {done.stderr}")

    def test_every_command_has_help_and_refuses_nonsense(self) -> None:
        for command in ("efficiency", "plot", "merge", "ranks", "rerun", "report"):
            with self.subTest(command):
                shown = run(command, "--help", code=0)
                self.assertIn("exit codes", shown.stdout)
                self.assertEqual(run(command, "--no-such-option").returncode, 2)

    def test_efficiency_table_and_json(self) -> None:
        make(self.db, SessionSpec(solo=1.0, full=1.25, noise=0.0))
        table = run("efficiency", self.db, code=0)
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

    def test_numbers_have_plain_digits(self) -> None:
        whole = commands.number(lambda value: value > 0, "{} is no number", int)
        self.assertEqual(whole("12"), 12)
        for text in ("\uff11\uff12", "1_2", "", "nan"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, "is no number"):
                whole(text)

    def test_not_comparable_is_exit_code_4(self) -> None:
        made = make(self.db, SessionSpec(), SessionSpec(fingerprint="b"), SessionSpec(traced=1))
        self.assert_fault(run("efficiency", self.db), 4, "different fingerprints")
        self.assertEqual(run("efficiency", self.db, "--mix-fingerprints").returncode, 0)
        self.assertEqual(run("efficiency", self.db, "--traced").returncode, 0)
        self.assert_fault(run("efficiency", self.db, "--run", made[0]["full"], "--run", made[2]["full"]), 4, "traced")

    def test_simulated_is_refused_beside_measured(self) -> None:
        made = make(self.db, SessionSpec(), SessionSpec(origin="simulated"))
        only = run("efficiency", self.db, code=0)
        self.assertIn("left out: 3 simulated", only.stdout)
        self.assertIn("simulated", run("efficiency", self.db, "--origin", "simulated").stdout.splitlines()[2])
        ids = [made[0]["full"], made[1]["full"]]
        self.assert_fault(run("efficiency", self.db, "--run", ids[0], "--run", ids[1]), 4, "simulated and measured")

    def test_a_replay_is_never_shown_as_training(self) -> None:
        make(self.db, SessionSpec(model="resnet101-div64", columns={"device": "replay"}))
        for command, line in (("efficiency", 2), ("report", None)):
            shown = run(command, self.db, code=0)
            where = shown.stdout if line is None else shown.stdout.splitlines()[line]
            self.assertIn("ResNet-101 with 1/64 of its gradients, replayed compute", where)
            self.assertNotIn("Pascal", shown.stdout, "no published figure of the whole network beside it")

    def test_merge_exit_codes(self) -> None:
        make(self.db, SessionSpec())
        out = self.folder / "out.db"
        self.assertEqual(run("merge", "-o", out, self.db).returncode, 0)
        self.change("UPDATE run SET final_loss = 3")
        self.assert_fault(run("merge", "-o", out, self.db), 4, "different contents")
        self.assert_fault(run("merge", "-o", out, self.folder / "absent"), 2, "no such file")

    def test_report_and_plots(self) -> None:
        make(self.db, SessionSpec())
        page = run("report", self.db, code=0)
        for section in ("## Scaling efficiency", "## Where the step time goes", "## Memory", "## Provenance"):
            self.assertIn(section, page.stdout)
        run("plot", self.db, "--out", self.folder / "plots", "--format", "svg", code=0)
        self.assertEqual(sorted(p.name for p in (self.folder / "plots").iterdir()), ["scaling.svg", "waterfall.svg"])

    def fact(self, key: str, value: str) -> None:
        """Adds a fact to all runs. The fact is no part of the runs' fingerprint."""
        self.change("INSERT INTO provenance SELECT uuid, ?, ?, 0 FROM run", key, value)

    def record(self, full: float, cpu: str, ranks: int = 2) -> str:
        """Makes a store whose session the stand-in self.program can repeat. Returns the id of the full run."""
        text = textwrap.dedent(FAKE_BENCH.format(python=sys.executable, tests=str(Path(__file__).parent)))
        self.program = executable(self.folder / "fake bench", text.replace("\n    ", "\n"))
        command = (
            "cd /gone && env LD_AUDIT=/x.so OMP_PLACES='cores (2)' "
            f"/gone/hvd_bench --ranks 2 --learning-rate {full} --label {shlex.quote(f'cpu={cpu}')} --db old.db --json"
        )
        spec = SessionSpec(ranks=ranks, noise=0.001, provenance={"cpu.model": ("Test CPU", 1)})
        (self.runs,) = make(self.db, spec)
        self.change("UPDATE session SET command_line = ?", command)
        return self.runs["full"]

    def again(self, run_id: str, *words: object, code: int | None = None) -> subprocess.CompletedProcess[str]:
        return run("rerun", run_id, self.db, "--execute", "--program", self.program, *words, code=code)

    def test_rerun_shows_the_command(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        done = run("rerun", run_id[:8], self.db, code=0)
        self.assertIn("--learning-rate 1.25", done.stdout)
        self.assert_fault(run("rerun", "ffffffff", self.db), 2, "no run starts with")

    def test_rerun_executes_and_compares(self) -> None:
        done = self.again(self.record(2.5, "Test CPU"), code=0)
        self.assertRegex(done.stdout, r"ratio now / then: 0\.(49|50)\d \[0\.")
        self.assertIn("reduced gradients: bit-identical", done.stdout)
        self.assertRegex(
            done.stdout, r"\nruns: OMP_PLACES='cores \(2\)' '/.*/fake bench' --ranks=2 --learning-rate=2.5 "
        )
        self.assertIn("\nleft out: variable LD_AUDIT=/x.so: set it yourself if you trust it\n", done.stdout)

    def test_a_record_is_never_given_to_a_shell(self) -> None:
        """No shell may interpret the record, whether rerun gets --program or not."""
        run_id = self.record(1.25, "Test CPU")
        touched = self.folder / "touched"
        for command in (f"touch {touched}; true", f"hvd_bench --seed 3; touch {touched}", f"sh -c 'touch {touched}'"):
            self.change("UPDATE session SET command_line = ?", command)
            for words in (("--program", self.program), ("--launch", "env"), ()):
                done = run("rerun", run_id, self.db, "--execute", *words)
                self.assert_fault(
                    done, 2, "the command line of run .* is not run again: .*; if you trust it, run it by hand: "
                )
                self.assertIn(command, done.stderr)
        self.assertFalse(touched.exists())
        shown = run("rerun", run_id, self.db, code=0)
        self.assertIn("--execute does not run it: ", shown.stdout)

    def launched(self, launcher: str, ranks: int = 2) -> str:
        """Makes the record of record() one that `launcher` started. Returns the id of its full run."""
        run_id = self.record(1.25, "Test CPU", ranks)
        line = f"env OMP_PLACES='cores (2)' {launcher} hvd_bench --learning-rate 1.25 --label 'cpu=Test CPU'"
        self.change("UPDATE session SET command_line = ?", line)
        self.program.write_text(self.program.read_text().replace('["--ranks", ', "["))
        return run_id

    def test_several_processes_need_a_launcher_that_the_person_names(self) -> None:
        """The recorded launcher is only shown, so that it can be copied. A phase of one rank needs it too."""
        note = self.folder / "launched"
        own = executable(self.folder / "my launcher", f'#!/bin/sh\necho "$1" >"{note}"\nshift\nexec "$@"\n')
        recorded = f"sh -c 'touch {note}\n\x1b[2J' $(x)"
        run_id = self.launched(recorded)
        words = f"""--launch 'sh -c '"'"'touch {note}\\n\\x1b[2J'"'"' '"'"'$(x)'"'"''"""
        refused = "a launcher must start the 2 ranks of run .*: name yours with --launch; the record has --launch 'sh "
        for each in (run_id, self.runs["solo"]):
            done = self.again(each)
            self.assert_fault(done, 2, refused)
            self.assertIn(f"has {words} (copy it only if you trust it)\n", done.stderr)
        shown = run("rerun", run_id, self.db, code=0).stdout
        self.assertIn(f"--execute does not run it: a launcher must start the 2 ranks of run {run_id[:8]}: ", shown)
        self.assertFalse(note.exists())
        done = self.again(run_id, "--launch", f"'{own}' -2", code=0)
        self.assertRegex(done.stdout, r"\nruns: OMP_PLACES='cores \(2\)' '/.*/my launcher' -2 '/.*/fake bench' --learn")
        self.assertEqual(note.read_text(), "-2\n")
        self.change("UPDATE session SET command_line = 'hvd_bench'")
        self.assert_fault(self.again(run_id), 2, "name yours with --launch; the record has none$")
        self.assert_fault(self.again(run_id, "--launch", "'mpirun"), 2, "--launch ''mpirun': no closing quotation")

    def test_one_process_needs_no_launcher(self) -> None:
        run_id = self.launched("mpirun -n 1", ranks=1)
        shown = run("rerun", run_id, self.db, "--program", self.program, code=0).stdout
        self.assertRegex(shown, "\nruns: OMP_PLACES='cores .2.' '/.*/fake bench' --learn")
        self.assertIn("\nleft out: the launcher: --launch 'mpirun -n 1' if you trust it\n", shown)

    def test_a_record_from_before_new_labels_cycles_them(self) -> None:
        """A record without data.labels is from a program that cycled the labels, so a rerun must cycle them. If the
        program of the rerun does not know --labels, the rerun must not pass this option."""
        run_id = self.record(1.25, "Test CPU")
        for text, cycles in (("--seed N", False), ("--labels RULE", True)):
            program = executable(self.folder / "some bench", f"#!/bin/sh\n# {text}\n")
            shown = run("rerun", run_id, self.db, "--program", program)
            self.assertEqual(" --labels=cycled\n" in shown.stdout, cycles, shown.stdout)
        self.fact("data.labels", "fresh")
        self.assertNotIn("--labels", run("rerun", run_id, self.db, "--program", program).stdout)

    def test_rerun_repeats_the_size_that_fit_chose(self) -> None:
        """--fit could choose another batch today, so the record's own batch, image size and rate stand in its place."""
        run_id = self.record(1.25, "Test CPU")
        command = "hvd_bench --model vgg16 --efficiency --fit --batch-size 4 --ranks 2"
        self.change("UPDATE session SET command_line = ?", command)
        self.change("UPDATE run SET batch_size = 3, image_size = 160")
        self.fact("sgd.learning_rate", "0.0075")
        shown = run("rerun", run_id, self.db, "--program", self.program, code=0).stdout
        self.assertRegex(
            shown,
            "runs: .* --model=vgg16 --efficiency --ranks=2 --batch-size=3 --image-size=160 --learning-rate=0.0075 --d",
        )
        self.change("UPDATE provenance SET value = '0.1 --db=/stranger' WHERE key = 'sgd.learning_rate'")
        shown = run("rerun", run_id, self.db, "--program", self.program, code=0).stdout
        self.assertNotIn("stranger", shown)
        self.assertIn("left out: the learning rate that --fit chose: ", shown)

    def test_rerun_compares_sums_only_after_equal_steps_of_every_phase(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        self.change("UPDATE run SET measured_steps = measured_steps - 1 WHERE phase = 'none'")
        done = self.again(run_id, code=0)
        self.assertRegex(done.stdout, r"reduced gradients: not compared.*none \d+, solo \d+ then, ")

    def test_rerun_elsewhere_is_not_comparable(self) -> None:
        done = self.again(self.record(1.25, "Other CPU"), code=4)
        self.assertIn("differs (can change the result): cpu.model: 'Test CPU' then, 'Other CPU' now", done.stdout)

    def test_rerun_that_fails_says_so(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        executable(self.folder / "fake bench", "#!/bin/sh\nexit 7\n")
        self.assert_fault(
            self.again(run_id), 2, "exit code 7: OMP_PLACES='cores .2.' '/.*/fake bench' --ranks=2 --learning-rate="
        )

    def test_what_cannot_change_the_result_is_said_to_be_so(self) -> None:
        run_id = self.record(1.25, "Test CPU")
        self.fact("git.commit", "old")
        done = self.again(run_id, code=0)
        self.assertIn("differs (not in the fingerprint): git.commit: 'old' then, 'None' now", done.stdout)

    def test_a_recorded_figure_is_shown_as_it_would_run_here(self) -> None:
        db = REPOSITORY / "results" / "recorded" / "2026-11-21-2cores" / "quickstart.db"
        shown = run("rerun", "c6eb28e8", db, code=0)
        commit = "dc727fc9deb4891741d6d3d84b282528d5dd14f6"
        built = f"\nbuilt from: commit {commit}, clean (git checkout {commit} && scripts/build release)\n"
        self.assertIn(built, shown.stdout)
        program = executable(self.folder / "my bench", "")
        words = ("--program", program, "--db", "/n.db", "--launch", "srun -n 2")
        shown = run("rerun", "c6eb28e8", db, *words, code=0)
        options = "--model=inception3 --efficiency --threads=1 --batch-size=4 --max-time=75"
        self.assertIn(f"\nruns: srun -n 2 '{program}' {options} --db=/n.db\n", shown.stdout)
        words = ("--program", "/none", "--launch", "srun")
        self.assert_fault(run("rerun", "c6eb28e8", db, *words), 2, "--program: no program at /none: ")

    def test_every_recorded_command_line_is_read(self) -> None:
        """Reads every command line of a training in the recorded stores, on CPUs and on GPUs."""
        lines = set()
        trainings = (
            "SELECT command_line FROM session WHERE uuid IN (SELECT session_uuid FROM run WHERE device <> 'torch')"
        )
        for db in (REPOSITORY / "results" / "recorded").glob("**/*.db"):
            connection = sqlite3.connect(f"{db.as_uri()}?mode=ro", uri=True)
            lines |= {row[0] for row in connection.execute(trainings)}
            connection.close()
        self.assertGreater(len(lines), 20)
        for line in lines:
            self.assertEqual(recorded_command.parse(line).left_out, ())
