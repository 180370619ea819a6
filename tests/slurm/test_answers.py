"""Tests what Slurm's programs may answer: another cluster, text around a job's number, no answer, and bytes that are
not UTF-8. No job may be submitted twice."""

from __future__ import annotations

import subprocess
import unittest.mock

from fake_cluster import FakeCluster
from test_life import ONCE, LifeTest

from hvdb.base.errors import CampaignError
from hvdb.campaign import folder, scheduler

MAY_BE_QUEUED = "it may be queued all the same: resume finds it by its name"


class AnswerTest(LifeTest):
    def afresh(self, name: str, **limits: object) -> None:
        """Makes a new cluster with these limits, and a campaign that is not submitted yet."""
        self.folder = self.top / name
        self.cluster = FakeCluster(self.top / f"cluster of {name}", **limits)
        self.generate(ONCE)

    def assert_none_is_submitted_twice(self, *limits: str) -> None:
        """After submit() queued the first job and failed, `resume` must submit the other two jobs."""
        self.cluster = FakeCluster(self.cluster.folder)  # without the limits
        self.assertEqual(self.counts(), {"queued": 2, "lacking": 6})
        self.assertNotIn("n0001", self.good("resume"))
        self.assertEqual(len({record["name"] for record in self.cluster.records()}), 3)
        self.assertEqual(len(self.cluster.records()), 3)

    def test_the_cluster_that_the_site_names_is_asked(self) -> None:
        options = ('extra=["--clusters=b"]', 'extra=["--hint=x --clusters=b"]', 'command=["sbatch", "--clusters=B"]')
        for number, option in enumerate(options):
            with self.subTest(option):
                self.afresh(f"{number}")
                self.generate(None, "--set", f"submit.{option}", "--replace")
                self.good("submit")
                self.assertEqual(self.counts(), {"queued": 8})
                self.assertEqual(self.good("resume"), "nothing to hand in: the rest is at work\n")
                self.assertIn("n0002 repetition 1: queued, cancelled", self.good("cancel"))
                self.assertEqual(self.cluster.tasks(), [])

    def test_an_option_in_a_comment_names_no_cluster(self) -> None:
        self.submitted(ONCE, "--set", 'submit.extra=["--hint=x # --clusters=b", "#--clusters=c"]')
        self.assertEqual(self.counts(), {"queued": 8})

    def test_a_cluster_that_the_site_does_not_name(self) -> None:
        self.afresh("x", cluster="b")
        self.refused(self.call("submit", self.folder), "is queued as 101 on the cluster b, where status does not look")
        self.generate(None, "--set", 'submit.extra=["--clusters=b"]', "--replace")
        self.assert_none_is_submitted_twice()

    def test_several_clusters_are_refused(self) -> None:
        words = ("generate", self.top / "spec.toml", "--site", self.top / "site.toml", "--out", self.folder, "--set")
        for value in ('extra=["--clusters=a,b"]', 'extra=["-Mall"]', 'command=["sbatch", "-M", "a", "-M", "b"]'):
            self.refused(self.call(*words, f"submit.{value}"), "jobs wait for one another; name one cluster")
        for name in ("SLURM_CLUSTERS", "SBATCH_CLUSTERS"):
            self.refused(self.call(*words, f'submit.keep_variables=["{name}"]'), "name the cluster in extra instead")

    def test_text_around_the_number(self) -> None:
        self.afresh("x", answer="Welcome!\n{}\nRemaining core hours of project abc: 1200")
        self.assertIn("n0004: job 103, 3 cells in repetition 1, after 101 has succeeded", self.good("submit"))

    def test_an_answer_without_one_number(self) -> None:
        answers = ("Remaining core hours of project abc: 1200", "{}\n1200", "", "job {}", "{};b;c", "\u0661")
        for number, answer in enumerate(answers):
            with self.subTest(answer):
                self.afresh(f"{number}", answer=answer)
                self.refused(self.call("submit", self.folder), "no one line is a job number", MAY_BE_QUEUED)
                self.assert_none_is_submitted_twice()

    def test_a_time_out_after_the_job_was_accepted(self) -> None:
        for fault in ("Socket timed out on send/recv operation", "Zero Bytes were transmitted or received"):
            with self.subTest(fault):
                self.afresh(fault[:4], lost_answer=fault)
                said = self.call("submit", self.folder)
                self.refused(said, f"failed: {fault}", MAY_BE_QUEUED)
                self.assertNotIn("rejected", said.stderr)
                self.assert_none_is_submitted_twice()

    def test_advice_after_an_error(self) -> None:
        self.generate(ONCE)
        said = subprocess.CompletedProcess([], 1, "", "sbatch: error: Invalid account\nsee https://site/accounts\n")
        with unittest.mock.patch("subprocess.run", side_effect=[subprocess.CompletedProcess([], 0, "", ""), said]):
            self.refused(
                self.call("submit", self.folder), "sbatch rejected it: sbatch: error: Invalid account; correct"
            )

    def test_an_error_in_place_of_the_list(self) -> None:
        self.generate(ONCE)
        machine = scheduler.of(folder.read(self.folder))
        said = "slurm_load_jobs error: Unable to contact slurm controller"
        for answer in (f"{said}\n", f"CLUSTER: b\n{said}\n", f"1|x|RUNNING|1:00|None\n{said}\n"):
            with (
                unittest.mock.patch("subprocess.run", return_value=subprocess.CompletedProcess([], 0, answer, "")),
                unittest.mock.patch("shutil.which", return_value="/x"),
                self.assertRaisesRegex(CampaignError, f"squeue: {said}; what is queued or running is not known"),
            ):
                machine.active()

    def test_programs_that_do_not_answer(self) -> None:
        self.generate(ONCE)
        manifest = folder.read(self.folder)
        machine = scheduler.of(manifest)
        for act, message in (
            (lambda: machine.submit(manifest.jobs[0], [1], []), f"sbatch: no answer in 120 s; .* {MAY_BE_QUEUED}"),
            (lambda: machine.cancel(["101"]), "scancel: no answer in 120 s; some may be cancelled; see squeue"),
        ):
            with (
                unittest.mock.patch("subprocess.run", side_effect=subprocess.TimeoutExpired("sbatch", 120)),
                unittest.mock.patch("shutil.which", return_value="/x"),
                self.assertRaisesRegex(CampaignError, message),
            ):
                act()

    def test_bytes_that_are_not_utf8(self) -> None:
        self.afresh("x", reason="caf\udce9")
        self.good("submit")
        self.assertEqual(self.unit("n0002")["note"], "caf\\xe9")
