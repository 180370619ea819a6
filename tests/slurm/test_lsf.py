"""Tests LSF: jsrun's stand-in against the documented forms, campaigns with bsub, bjobs and bkill, and real ranks.

There was no LSF to test with. The tests show that scripts follow the documentation, not that a real jsrun accepts them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import unittest
import unittest.mock
from pathlib import Path

import jsrun_sets
from campaigns import HANG, STAND_INS, rows, site_of, spec_of
from fake_cluster import FakeCluster, Task
from jsrun_sets import Machine
from test_life import SPEC, LifeTest

from hvdb.campaign import plan
from hvdb.campaign.script import launch_command

SUMMIT = Machine(nodes=2, cores=42, gpus=6)
PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
MPIRUN = shutil.which("mpirun") if os.environ.get("HVD_TEST_MPI", "1") == "1" else None


def placed(line: str, machine: Machine = SUMMIT) -> list[jsrun_sets.Rank]:
    return jsrun_sets.place(jsrun_sets.parse(line.split()), machine)


class ResourceSetsTest(unittest.TestCase):
    def test_one_set_per_gpu(self) -> None:
        ranks = placed("-n12 -r6 -a1 -c7 -g1 prog")
        self.assertEqual([r.node for r in ranks], [0] * 6 + [1] * 6)
        self.assertEqual([r.gpus for r in ranks[:6]], [(0,), (1,), (2,), (3,), (4,), (5,)])
        self.assertEqual(ranks[7].cores, (7,), "the second set's first core: -b packed:1 is the default")
        self.assertEqual([r.local_rank for r in ranks], [*range(6), *range(6)])

    def test_one_set_per_node(self) -> None:
        ranks = placed("-n2 -r1 -a4 -c28 -g4 -bpacked:7 -dpacked prog")
        self.assertEqual([r.node for r in ranks], [0] * 4 + [1] * 4)
        self.assertEqual({r.gpus for r in ranks}, {(0, 1, 2, 3)}, "ranks of a set see all of its GPUs")
        self.assertEqual([len(r.cores) for r in ranks], [7] * 8)
        self.assertEqual(len({r.cores for r in ranks[:4]}), 4)

    def test_every_shape_of_the_full_campaign_is_accepted(self) -> None:
        for arguments in ({}, {"ranks_per_node": "6", "ranks": "[1, 6, 12, 96, 510]"}):
            for resource_sets in ("node", "rank"):
                machine = site_of("summit", f"launch.resource_sets={resource_sets}")
                made = plan.make(spec_of(**arguments), machine)
                for job in made.jobs:
                    for shape in job.shapes():
                        words = launch_command(machine, shape)[1:]
                        ranks = placed(" ".join([*words, "prog"]), Machine(job.nodes, 42, 6))
                        self.assertEqual(len(ranks), shape.ranks)
                        self.assertEqual(len({r.node for r in ranks}), shape.nodes)
                        self.assertEqual(max(r.local_rank for r in ranks) + 1, shape.ranks_per_node)
                        self.assertTrue(all(r.gpus for r in ranks), "every rank sees a GPU")
        ragged = plan.make(spec_of(ranks="[6]", allow_ragged="true"), site_of("summit"))
        (shape,) = (s for s in ragged.jobs[0].shapes() if s.ragged)
        ranks = placed(" ".join([*launch_command(site_of("summit"), shape)[1:], "prog"]))
        self.assertEqual([r.node for r in ranks], [0, 0, 0, 0, 1, 1])


class LsfLifeTest(LifeTest):
    SCHEDULER_SITE = f"""
base = "summit"
name = "lsf"
[program]
hvd_bench = "{STAND_INS}/hvd_bench"
device = "cpu"
"""

    def setUp(self) -> None:
        super().setUp()
        self.cluster = FakeCluster(self.top / "cluster", projects=["abc123"], stdin=False)
        self.world = {"FAKE_WORLD": "1"}

    def test_from_submit_to_complete(self) -> None:
        self.generate(None, "--set", "submit.account=abc123")
        # two repetitions of 6 cells: 1, 2 and 4 ranks on one node, and 8 ranks on two nodes with two baselines
        self.assertEqual(self.counts(), {"lacking": 12})
        self.assertIn("n0002: job 102, 6 cells in repetitions 1, 2, after 101", self.good("submit"))
        self.assertEqual(self.counts(), {"queued": 12})
        self.cluster.run(Task(101, 2), **self.world)
        self.assertEqual(self.counts(), {"done": 3, "queued": 9})
        self.cluster.run_all(**self.world)
        self.assertEqual(self.counts(), {"done": 12})
        self.assertEqual(self.good("resume"), "nothing to hand in: all cells are held\n")
        sizes = {}
        for path in self.folder.glob("stores/n0002.*.db"):
            sizes |= dict(rows(path, "SELECT allocation_size, count(DISTINCT session_uuid) FROM run GROUP BY 1"))
        self.assertEqual(sorted(sizes), [1, 4, 8], "the ranks that jsrun was asked for")

    def test_resume_hands_in_what_lacks(self) -> None:
        self.submitted(None, "--set", "submit.account=abc123", "--set", "submit.array_limit=1")
        self.cluster.run(Task(101, 1), **self.world)
        self.cluster.run(Task(101, 2), **self.world, FAKE_KILL_AT="9", FAKE_POINTS=str(self.top / "points"))
        self.assertEqual(self.cluster.ready(), [], "the first job has failed")
        self.assertIn("n0001: job 103, 2 cells in repetition 2", self.good("resume"))
        self.assertEqual(self.cluster.tasks()[0], Task(103, 2))
        self.cluster.run_all(**self.world)
        self.assertEqual(self.counts(), {"done": 12})
        self.assertEqual(set(self.sessions().values()), {1})

    def test_cancel(self) -> None:
        self.submitted(None, "--set", "submit.account=abc123")
        self.assertIn("n0002 repetition 2: queued, cancelled (102[2])", self.good("cancel"))
        self.assertEqual(self.cluster.tasks(), [])

    def test_the_first_job_is_waited_for_by_element(self) -> None:
        self.submitted(None, "--set", "submit.account=abc123")
        self.cluster.run(Task(101, 1), **self.world)
        self.cluster.set_state(Task(102, 1), "CANCELLED")
        self.assertIn("n0002: job 103, 3 cells in repetition 1, after 101[2]", self.good("resume"))
        self.cluster.run_all(**self.world)
        self.assertEqual(self.counts(), {"done": 12})

    def test_variables_of_lsf_do_not_reach_its_programs(self) -> None:
        self.generate(None, "--set", "submit.account=abc123")
        outer = {"BSUB_QUIET": "Y", "LSB_JOBID": "7", "LSB_DEFAULTQUEUE": "x", "JSM_NAMESPACE_SIZE": "4"}
        done = self.call("submit", self.folder, **outer, LSF_ENVDIR="/etc/lsf")
        self.assertEqual(done.returncode, 0, done.stderr)
        inherited = self.cluster.record(101)["environment"]
        self.assertFalse(inherited.keys() & outer.keys())
        self.assertEqual(inherited["LSF_ENVDIR"], "/etc/lsf")

    def test_folders_that_lsf_cannot_take(self) -> None:
        words = ("generate", self.top / "spec.toml", "--site", self.top / "site.toml", "--out")
        for name in ("two words", "100%J", 'say "x"', "back\\slash", "a#b", "$HOME", "two\nlines"):
            with self.subTest(name):
                self.refused(self.call(*words, self.top / name), "bsub cannot take")
                self.assertFalse((self.top / name).exists())
        self.folder = self.top / "two words"
        self.submitted_by_stdin()
        self.assertEqual(self.cluster.record(101)["output"], f"{self.folder}/logs/n0001.%J.%I.out")

    def submitted_by_stdin(self) -> None:
        self.cluster = FakeCluster(self.top / "other cluster")
        self.submitted(None, "--set", "submit.by=stdin")

    def test_a_resource_requirement_with_quotes(self) -> None:
        self.generate(None, "--set", 'submit.constraint=select[type=="X86"]')
        script = (self.folder / "jobs" / "n0001.sh").read_text(encoding="utf-8")
        self.assertIn("#BSUB -R 'select[type==\"X86\"]'\n", script)
        site, both = self.top / "site.toml", 'submit.constraint=it\'s "x"'
        done = self.call("generate", self.top / "spec.toml", "--site", site, "--out", self.folder, "--set", both)
        self.refused(done, "submit.constraint: a #BSUB line cannot hold both kinds of quotes")

    def test_rejected(self) -> None:
        self.generate()
        self.refused(self.call("submit", self.folder), "job n0001: bsub rejected it: A valid project name is required")
        self.generate(None, "--set", "submit.account=abc123", "--set", "submit.by=stdin", "--replace")
        self.refused(self.call("submit", self.folder), "bsub rejected it: No command is specified")

    def test_an_answer_with_two_numbers(self) -> None:
        self.generate(None, "--set", "submit.account=abc123")
        answer = "Job <7> is submitted to queue <x>.\n" * 2
        with unittest.mock.patch("subprocess.run", return_value=subprocess.CompletedProcess([], 0, answer, "")):
            done = self.call("submit", self.folder)
        self.refused(done, "bsub answered 'Job <7>", "no one line is a job number; it may be queued")

    def test_jsrun_outside_a_job(self) -> None:
        environment = self.cluster.environment()
        done = subprocess.run(["jsrun", "-n1", "true"], env=environment, capture_output=True, text=True, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("inside a job only", done.stderr)


@unittest.skipUnless(PROGRAM.is_file() and MPIRUN, "needs hvd_bench and mpirun")
class RealRanksTest(LifeTest):
    """Runs the generated script and the real program with MPI ranks on the CPU. bsub and jsrun are stand-ins."""

    SCHEDULER_SITE = f"""
base = "summit"
name = "lsf"
[node]
ranks_per_node = [2]
[program]
hvd_bench = "{PROGRAM}"
device = "cpu"
[launch]
options = []
"""
    SMALL = SPEC.replace("[1, 2, 4, 8]", "[1, 2]").replace("repetitions = 2", "repetitions = 1").replace("= 4", "= 2")

    def test_two_ranks(self) -> None:
        options = "[options]\nimage-size = 32\nclasses = 10\nthreads = 1\nnum-warmup-batches = 1\nnum-iters = 3\n"
        self.submitted(self.SMALL + options)
        self.cluster.run_all(timeout=HANG)
        self.assertEqual(self.counts(), {"done": 2}, self.cluster.log(Task(101, 1)))
        (store,) = self.folder.glob("stores/*.db")
        expected = [("full", 1, "complete"), ("full", 2, "complete"), ("none", 2, "complete"), ("solo", 1, "complete")]
        found = rows(store, "SELECT phase, world_size, status FROM run ORDER BY allocation_size, phase")
        self.assertEqual(found, expected)
        chosen = "run_uuid = uuid WHERE world_size = 2 AND phase = 'full'"
        facts = dict(rows(store, f"SELECT key, value FROM provenance JOIN run ON {chosen}"))
        self.assertEqual(facts["env.CUDA_VISIBLE_DEVICES"], "0,1", "rank 0 sees the GPUs of its resource set")
        self.assertEqual(facts["env.LSB_JOBID"], "101")
        manifest = json.loads((self.folder / "campaign.json").read_text())
        self.assertEqual(facts["label.spec"], manifest["spec_hash"])
