"""Runs hvd_bench validate, which checks that all ranks compute the same bits equally fast."""

import json
import unittest

from program import PROGRAM, ProgramTest, execute, mpirun, needs_mpi, per_rank, query, run

# Pauses of a busy machine never slow every step of a rank beyond this threshold, so the tests judge only bits.
STEPS = ["--model", "resnet50", "--image-size", "32", "--batch-size", "2", "--classes", "10", "--threads", "1"]
VALIDATE = ["validate", *STEPS, "--steps", "10", "--threshold", "999"]


class Validate(ProgramTest):
    def test_equal_ranks_are_good_and_the_store_says_what_was_done(self) -> None:
        result = run(*VALIDATE, "--ranks", "4", "--db", str(self.db)).ended_with(0)
        self.assertIn("good        equal bits on equal ranks", result.out)
        self.assertIn("group 0     4 equal ranks", result.out)
        self.assertNotIn("images/s", result.out)
        rows = query("SELECT phase, status, images_per_second, measured_steps, checks FROM run", self.db)
        self.assertEqual([row[:4] for row in rows], [("none", "complete", None, 10)])
        self.assertIn("equal bits on equal ranks", rows[0][4])
        self.assertEqual(len(query("SELECT DISTINCT gradient_checksum FROM rank", self.db)), 1)
        facts = dict(query("SELECT key, in_fingerprint FROM provenance", self.db))
        self.assertEqual(facts["validate.turns"], 1)

    def test_json(self) -> None:
        result = run(*VALIDATE, "--ranks", "2", "--json").ended_with(0)
        document = json.loads(result.out)["validation"]
        self.assertEqual((document["timed_steps"], document["findings"]), (10, []))
        self.assertEqual([rank["rank"] for rank in document["ranks"]], [0, 1])
        self.assertEqual(len({(rank["gradients"], rank["weights"]) for rank in document["ranks"]}), 1)

    @needs_mpi
    def test_processes(self) -> None:
        result = mpirun(2, *VALIDATE).ended_with(0)
        self.assertIn("2 equal ranks have no majority", result.out)

    def test_one_rank(self) -> None:
        self.refused(run(*VALIDATE), 2, "there is one", "--ranks 4")

    def test_help(self) -> None:
        result = run("validate", "--help").ended_with(0)
        for text in ("--steps N", "--threshold PERCENT", "Exit codes"):
            self.assertIn(text, result.out)
        self.assertIn("validate", run("--help").out)

    @needs_mpi
    def test_ranks_that_are_given_another_command(self) -> None:
        training = [PROGRAM, *STEPS, "--comm", "none", "--no-db"]
        result = execute(per_rank([PROGRAM, *VALIDATE, "--no-db"], training))
        self.refused(result, 6, "the command is validate on rank 0", "train on rank 1")


if __name__ == "__main__":
    unittest.main()
