"""Tests sites, their bases, and --set. Every mistake must give one line that says what is right."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

from campaigns import fault, site_of

from hvdb.campaign import site


class SiteTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.file = Path(scratch.name) / "ours.toml"

    def written(self, text: str) -> str:
        self.file.write_text(text, encoding="utf-8")
        return str(self.file)

    def test_all_that_come_along(self) -> None:
        self.assertEqual(site.known(), ["host-8gpu", "laptop", "slurm", "slurm-4gpu", "slurm-8gpu", "summit"])
        for name in site.known():
            with self.subTest(name):
                self.assertEqual(site.read(name).name, name)

    def test_a_base_gives_what_is_not_said(self) -> None:
        ours = site.read(self.written('base = "slurm-8gpu"\nname = "ours"\n[submit]\npartition = "gpu"'))
        self.assertEqual((ours.name, ours.scheduler, ours.submit.partition), ("ours", "slurm", "gpu"))
        self.assertEqual((ours.node.gpus, ours.node.ranks_per_node), (8, (8,)))
        self.assertEqual(ours.launch.command, ("srun", "--mpi=pmix"))

    def test_a_base_may_be_a_file_beside(self) -> None:
        (self.file.parent / "base.toml").write_text(
            'base = "slurm"\nname = "base"\n[node]\ncores = 12\n', encoding="utf-8"
        )
        self.assertEqual(site.read(self.written('base = "base.toml"\nname = "ours"')).node.cores, 12)
        self.assertRegex(fault(site.read, self.written('base = "ours.toml"')), "names itself|more than 8 levels")

    def test_set(self) -> None:
        ours = site_of("slurm-4gpu", "submit.account=abc 123", "node.ranks_per_node=[2,4]", "program.environment.X=1")
        self.assertEqual(ours.submit.account, "abc 123")
        self.assertEqual(ours.node.ranks_per_node, (2, 4))
        self.assertEqual(ours.program.environment, {"X": "1"})
        self.assertNotEqual(ours.hash, site_of("slurm-4gpu").hash)
        self.assertEqual(site_of("slurm", "submit.account=0123").submit.account, "0123")
        self.assertEqual(site_of("slurm", "submit.account=123").submit.account, "123")
        self.assertEqual(site_of("slurm", "walltime.maximum=00:50:00").walltime.maximum, 3000)
        for bad, pattern in (
            ("submit.account", "submit.account: is not KEY=VALUE"),
            ("submit.acount=x", r"submit.acount: there is no such key \(did you mean account"),
            ("node.cores=many", "node.cores: 'many' is not a whole number"),
            ("submit=3", "submit: 3 is not a table"),
            ("walltime.margin=1e308", r"walltime.margin: 1e\+308 is not a number from 1 to 1e\+06"),
            ("walltime.margin=1" + "0" * 400, "walltime.margin: a number of 1329 bits is not a number from 1"),
            ("node.cores=" + "1" * 5000, "node.cores: '1+...1+' is not a whole number"),
            ("node.cores=" + "[" * 3000, r"node.cores: '\[+...\[+' is not a whole number"),
            ("node.cores=2", "node.cores: node.ranks_per_node: 4 ranks, but a node has 2 cores"),
            ("scheduler=none", "scheduler: submit.array: needs a scheduler"),
        ):
            with self.subTest(bad):
                self.assertRegex(fault(site_of, "slurm-4gpu", bad), f"^--set {pattern}")

    def test_a_fault_of_the_file_is_not_blamed_on_set(self) -> None:
        file = self.written('base = "slurm"\nname = "ours"\n[submit]\narray = 3')
        self.assertRegex(fault(site.read, file, ["submit.account=x"]), f"^{file}: submit.array: 3 is not")
        self.assertRegex(fault(site.read, file, ["node.cores=x"]), "^--set node.cores: 'x' is not")
        several = ["node.gpus=0", "node.cores=32", "submit.account=x"]
        self.assertRegex(fault(site_of, "slurm-4gpu", *several), "^--set node.cores: launch.cores_per_rank: 4 ranks")

    def test_surroundings_are_what_is_set_around_a_run(self) -> None:
        plain = site_of("slurm-4gpu")
        for same in ("submit.account=x", "walltime.margin=2", "program.hvd_bench=/x"):
            self.assertEqual(site_of("slurm-4gpu", same).surroundings, plain.surroundings, same)
        for other in ('launch.binding=["--cpu-bind=none"]', "launch.cores_per_rank=8", "program.environment.A=1"):
            self.assertNotEqual(site_of("slurm-4gpu", other).surroundings, plain.surroundings, other)

    def test_every_field_is_needed(self) -> None:
        whole = (site.SITES / "summit.toml").read_text(encoding="utf-8")
        removed = 0
        for line in whole.splitlines():
            key = line.split("=")[0].strip()
            if "=" not in line or line.startswith("#"):
                continue
            with self.subTest(key):
                said = fault(site.read, self.written(whole.replace(line + "\n", "")))
                self.assertIn(f"{key} is missing; it takes", said)
                self.assertIn(str(self.file), said)
            removed += 1
        self.assertEqual(removed, 34, "the test must have seen every field")

    def test_mistakes(self) -> None:
        cases = [
            ('base = "slurm-4gpu"\nscheduler = "pbs"', "scheduler: 'pbs' is not one of slurm, lsf, none"),
            ('base = "slurm-4gpu"\n[node]\nranks_per_node = [6]', "6 ranks, but a node has 4 GPUs"),
            ('base = "slurm-4gpu"\n[node]\ncores = 2', "4 ranks, but a node has 2 cores"),
            ('base = "slurm-4gpu"\n[node]\ncores = 32', "4 ranks of 16 cores do not fit on 32 cores"),
            ('base = "slurm-4gpu"\n[walltime]\nmaximum = "a day"', "'a day' is not a time of the form HH:MM:SS"),
            ('base = "slurm-4gpu"\n[walltime]\nmaximum = "00:00:00"', "is not a time"),
            ('base = "slurm-4gpu"\n[walltime]\nmargin = 0.5', "margin: 0.5 is not a number from 1"),
            ('base = "slurm-4gpu"\n[submit]\nby = "mail"', "'mail' is not one of argument, stdin"),
            ('base = "slurm-4gpu"\n[submit]\ncommand = []', "submit.command: is empty"),
            ('base = "slurm-4gpu"\n[submit]\nextra = ["a\\nb"]', "submit.extra[1]: 'a\\nb' is not a text of one line"),
            (
                'base = "slurm-4gpu"\n[program.environment]\n"A B" = "1"',
                "program.environment: 'A B' is not the name of",
            ),
            ('base = "slurm-4gpu"\n[program.environment]\nHOROVOD_TIMELINE = "x"', "HOROVOD_TIMELINE: would trace"),
            ('base = "slurm"\n[submit]\nkeep_variables = ["HOROVOD_TIMELINE"]', "HOROVOD_TIMELINE would trace every"),
            ('base = "slurm"\n[submit]\nkeep_variables = ["A=b"]', "'A=b' is not the name of an environment variable"),
            ('base = "slurm-4gpu"\n[program]\ndevice = "tpu"', "'tpu' is not one of auto, cpu, cuda"),
            ('base = "summit"\n[submit]\nqos = "high"', "submit.qos: LSF has no such thing"),
            ('base = "summit"\n[launch]\ncores_per_rank = 0', "launch.cores_per_rank: is 0, but jsrun"),
            ('base = "laptop"\n[submit]\narray = true', "submit.array: needs a scheduler"),
            ('base = "frontier"', "site 'frontier': there is no such site; known: host-8gpu, laptop"),
            ("base = 3", "base: 3 is not a string"),
            ('base = "slurm"\n[walltime]\nstartup_seconds = inf', "startup_seconds: inf is not a number from 0 to"),
        ]
        for text, pattern in cases:
            with self.subTest(text):
                self.assertIn(pattern, fault(site.read, self.written(text)))
        self.assertIn("did you mean slurm-4gpu?", fault(site.read, "slurm-4gpus"))
        self.assertIn("cannot be read", fault(site.read, "/nowhere/x.toml"))
