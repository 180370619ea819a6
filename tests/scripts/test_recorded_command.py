"""Tests which words of a recorded command line a rerun accepts and which it refuses. No test runs a command."""

from __future__ import annotations

import re
import shlex
import unittest
from pathlib import Path
from unittest import mock

import harness  # noqa: F401  # puts scripts/ on the path

from hvdb.base import data
from hvdb.base.errors import HvdbError
from hvdb.read import recorded_command
from hvdb.read.recorded_command import Unknown, command, parse

HERE = Path("/mine/hvd_bench")
DB = Path("/n/new.db")


class RecordedCommand(unittest.TestCase):
    def words(self, line: str, **files: str) -> str:
        own = {name.replace("_", "-"): Path(file) for name, file in files.items()}
        return " ".join(command(parse(line), HERE, DB, own))

    def refused(self, line: str, why: str) -> None:
        with self.assertRaisesRegex(Unknown, why, msg=line):
            parse(line)

    def test_a_training_under_pytorch_is_its_scripts(self) -> None:
        with self.assertRaisesRegex(recorded_command.Unknown, "run the script of that training again"):
            recorded_command.parse("cd /x && env OMP_NUM_THREADS=1 /y/hvd_bench analyse /tmp/s.txt --db=mine.db")

    def test_what_the_program_writes(self) -> None:
        line = "cd '/a b' && env OMP_NUM_THREADS=2 mpirun -n 2 ./x/hvd_bench --model vgg16 --label 'k=a b' --efficiency"
        self.assertEqual(
            command(parse(line), HERE, DB, {}),
            [str(HERE), "--model=vgg16", "--label=k=a b", "--efficiency", f"--db={DB}"],
        )
        self.assertEqual(parse(line).variables, {"OMP_NUM_THREADS": "2"})
        vectors = {"HVD_MAX_CPU_ISA": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        self.assertEqual(parse("env HVD_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 hvd_bench").variables, vectors)
        made = self.words("hvd_bench train --no_check --batch_size=4")
        self.assertEqual(made, f"{HERE} --no-check --batch-size=4 --db={DB}")

    def test_a_launcher_is_told_apart_and_never_taken(self) -> None:
        for launcher in (
            "",
            "mpirun -n 2",
            "srun --mpi=pmix -N 2 -n 8",
            "jsrun -n 6",
            "/tmp/mpirun --wdir=/hvd_bench -x LD_PRELOAD=/tmp/x.so",
            "sh -c 'touch x'",
        ):
            line = f"env OMP_NUM_THREADS=2 {launcher} /x/hvd_bench --seed 3"
            self.assertEqual(shlex.join(parse(line).launcher), launcher)
            self.assertEqual(self.words(line), f"{HERE} --seed=3 --db={DB}")

    def test_no_file_comes_from_the_record(self) -> None:
        line = (
            "/evil/hvd_bench --db=o --json --record_replay t --quiet --timeline-filename t --tuning-folder w --seed 3"
        )
        self.assertEqual(self.words(line), f"{HERE} --seed=3 --timeline-filename={DB}.trace --db={DB}")
        self.assertIn(" --tuning-folder=/mine ", self.words(line, tuning_folder="/mine"))
        self.assertIn(f" --timeline-filename={DB}.trace ", self.words("env HOROVOD_TIMELINE=/etc/x hvd_bench"))
        self.assertEqual(parse("env HOROVOD_TIMELINE=/etc/x hvd_bench").variables, {})
        self.assertNotIn("tuning", self.words("hvd_bench", tuning_folder="/mine"))
        with self.assertRaisesRegex(HvdbError, "replays the file '/their/step': name your copy of it with --replay"):
            self.words("hvd_bench --replay /their/step")
        self.assertIn(" --replay=/my/step ", self.words("hvd_bench --replay /their/step", replay="/my/step"))

    def test_what_is_not_the_program_is_refused(self) -> None:
        for line in ("touch x; true", "", "mpirun -n 2", "mpirun -n 2 sh -c 'hvd_bench --seed 3'"):
            self.refused(line, "there is no hvd_bench in it")
        self.refused('hvd_bench --model "x', "no closing quotation")
        self.refused("hvd_bench --model a\0b", "NUL")

    def test_what_follows_the_program_is_known_or_refused(self) -> None:
        for rest in (
            "; touch x",
            "&& touch x",
            "| sh",
            "$(touch x)",
            "doctor",
            "> x",
            "-h",
            "--",
            "--plugin x",
            ": sh",
        ):
            self.refused(f"hvd_bench --seed 3 {rest}", "unknown option '.+' of hvd_bench")
        self.refused("hvd_bench --seed", "the value of option '--seed' is missing")
        self.refused("hvd_bench --model --db x", "the value of option '--model' is missing")
        self.refused("hvd_bench --efficiency=1", "unknown option '--efficiency'")

    def test_variables_that_place_ranks_have_listed_words(self) -> None:
        good = (
            "slot core:pe=2 ppr:2:node:PE=4 L3cache :oversubscribe numa:pe=2,span package:if-supported none "
            "core:overload-allowed fill"
        )
        bad = (
            "rankFILE:FILE=hosts rankf:f=hosts RANKFILE:file=hosts seq node:file=hosts pe-list=x ppr:0:node node: "
            "cpu-list file=hosts core,core"
        )
        for name in (
            "PRTE_MCA_rmaps_default_mapping_policy",
            "OMPI_MCA_rmaps_base_mapping_policy",
            "OMPI_MCA_hwloc_base_binding_policy",
        ):
            for value in good.split():
                self.assertEqual(parse(f"env {name}={value} hvd_bench").variables, {name: value})
            for value in bad.split():
                self.assertEqual(parse(f"env {name}={value} hvd_bench").variables, {})

    def test_no_value_is_a_word_of_its_own(self) -> None:
        """After ":" mpirun starts a second program: `mpirun hvd_bench --model : --tune --label /tmp/evil`."""
        line = "mpirun -n 1 hvd_bench --model : --tune --label /tmp/evil --algorithm : --no-check"
        for word in command(parse(line), HERE, DB, {})[1:]:
            self.assertRegex(word, "^--[a-z]")

    def test_variables(self) -> None:
        made = parse(
            "env LD_PRELOAD=/tmp/x.so NCCL_NET_PLUGIN=x NCCL_ALGO=../x LD_LIBRARY_PATH=. OMP_PLACES='{0:2}:2:2' "
            "OMPI_MCA_btl_tcp_if_include=10.0.0.0/16 OMPI_MCA_mca_base_component_path=x hvd_bench"
        )
        self.assertEqual(made.variables, {"OMP_PLACES": "{0:2}:2:2", "OMPI_MCA_btl_tcp_if_include": "10.0.0.0/16"})
        self.assertEqual(len(made.left_out), 5)
        self.assertEqual(made.left_out[0], "variable LD_PRELOAD=/tmp/x.so: set it yourself if you trust it")

    def test_no_variable_of_the_list_names_a_file(self) -> None:
        names = " ".join(sorted(recorded_command.VARIABLES))
        self.assertNotRegex(names, r"PATH|FILE|PLUGIN|PRELOAD|DIR\b|LIB\b|DUMP|CONF|HOST|TOPO")

    def test_no_option_whose_value_is_taken_names_a_file(self) -> None:
        for name, row in data.of_training().items():
            if row["rerun"] == "repeat" and row["value"]:
                self.assertNotIn(row["value"], ("FILE", "FOLDER"), name)
                self.assertEqual(re.fullmatch(row["pattern"], "/tmp/x") is not None, name == "label", name)

    def test_a_value_that_its_row_does_not_allow_is_refused(self) -> None:
        for option in ("--seed=3x", "--threads '$(touch x)'", "--max-time ../x", "--dtype /x", "--model=/tmp/x"):
            self.refused(f"hvd_bench {option}", "option '--[a-z-]+' of hvd_bench has the value '.*', which")
        self.assertIn(" --learning-rate=1.5e-3 ", self.words("hvd_bench --learning-rate 1.5e-3"))

    def test_an_option_whose_row_does_not_allow_it_is_refused(self) -> None:
        rows = {"plugin": {"value": "X", "rerun": "refuse", "pattern": ""}}
        with mock.patch.object(data, "of_training", lambda: rows):
            self.refused("hvd_bench --plugin x", "unknown option '--plugin' of hvd_bench")
