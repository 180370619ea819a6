"""Tests the formula of tests/testbed/network_bench, and runs one small case on a real shaped network."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("scripts", "tests/testbed", "tests/cli")]

from hvnet.formula import PAYLOAD_SHARE, Link, Work, expected, queue_end, replay_text, ring_seconds  # noqa: E402
from program import HANG, PROGRAM, environment, eventually, processes_of  # noqa: E402

BENCH = str(ROOT / "tests" / "testbed" / "network_bench")
SKIPPED = 3


class Formula(unittest.TestCase):
    link = Link(bits_per_second=8e6 / PAYLOAD_SHARE, latency_seconds=0.01)  # 1 MB/s of payload

    def test_ring(self) -> None:
        # 4 ranks take 6 steps of 250 KB, each 0.25 s of transfer and 0.01 s of latency
        self.assertAlmostEqual(ring_seconds(self.link, 4, 1e6), 6 * 0.26)
        self.assertEqual(ring_seconds(self.link, 1, 1e6), 0)

    def test_queue(self) -> None:
        self.assertAlmostEqual(queue_end([1, 2, 10], [3, 3, 3]), 13)  # the items run at 1..4, 4..7 and 10..13
        self.assertAlmostEqual(queue_end([5, 5], [1, 1]), 7)

    def test_what_follows_backward_is_exposed(self) -> None:
        work = Work(compute_seconds=3, bucket_bytes=500_000, buckets=2, overlapped=False)
        want = expected(self.link, 2, work)  # a bucket takes 2 steps of 0.25 + 0.01 s
        self.assertAlmostEqual(want.exposed_seconds, 2 * 0.52)
        self.assertAlmostEqual(want.step_seconds, 4.04)
        self.assertAlmostEqual(want.efficiency, 3 / 4.04)

    def test_what_backward_hides_is_not(self) -> None:
        work = Work(compute_seconds=3, bucket_bytes=500_000, buckets=2, overlapped=True)
        self.assertEqual(work.ready_seconds, [2, 3])
        want = expected(self.link, 2, work)  # the buckets run at 2 .. 2.52 and 3 .. 3.52
        self.assertAlmostEqual(want.exposed_seconds, 0.52)

    def test_the_profile_says_that_nobody_recorded_it(self) -> None:
        text = replay_text(Work(0.3, 4096, 2, True), "sleep-x", "4 nodes, 250 Mbit/s, 0 us added")
        self.assertIn("model sleep-x\n", text)
        self.assertIn("source_run none (made up", text)
        self.assertIn("network: 4 nodes, 250 Mbit/s", text)
        self.assertIn("gradient 1024 0.2 0.2 bucket0\n", text)
        self.assertTrue(text.endswith("end 2\n"))


def names_outside() -> list[str]:
    """Returns the network devices and named namespaces that every process on this machine sees."""
    return [str(path) for folder in ("/sys/class/net", "/run/netns") for path in sorted(Path(folder).glob("*"))]


class Network(unittest.TestCase):
    def bench(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [BENCH, "--bench", PROGRAM, "--nodes", "4", "--mib", "2", "--buckets", "2", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, env=environment())

    def skip_or_fail(self, code: int, text: str) -> None:
        if code == SKIPPED:
            self.skipTest(text.strip())
        self.assertEqual(code, 0, text)

    def cases(self, *arguments: str) -> list[dict]:
        done = self.bench("--json", "--algorithms", "auto", "--iterations", "3", *arguments)
        self.skip_or_fail(done.returncode, done.stderr)
        return json.loads(done.stdout)["cases"]

    def test_four_ranks_are_held_to_the_rate(self) -> None:
        slow, fast = self.cases("--rate-mbit", "50,200", "--latency-us", "0", "--overlap", "no")
        for case in (slow, fast):
            got, want = case["measured"], case["formula"]
            # No rank may be faster than the link.
            self.assertGreater(got["exposed_seconds"], 0.9 * want["exposed_seconds"])
            self.assertLess(got["efficiency"], 1.1 * want["efficiency"])
            self.assertGreaterEqual(got["solo_seconds"], 0.2, "the sleep")
            self.assertIn("ring over mpi", got["data_plane"])
        ratio = slow["measured"]["exposed_seconds"] / fast["measured"]["exposed_seconds"]
        self.assertGreater(ratio, 1.5, "a quarter of the bandwidth takes longer")

    def test_latency_is_added(self) -> None:
        (case,) = self.cases("--rate-mbit", "200", "--latency-us", "3000", "--overlap", "yes")
        self.assertGreater(case["calibration"]["latency_seconds"], 0.003)
        self.assertLess(case["calibration"]["latency_seconds"], 0.030)

    def test_a_program_of_the_user_runs_on_every_node(self) -> None:
        # When one rank fails, mpirun ends the other rank. The sleep gives mpirun a second to pass on both outputs.
        command = ["--nodes", "2", "--latency-us", "0", "--", "sh", "-c", "hostname; sleep 1; exit 3"]
        done = subprocess.run([BENCH, "--bench", PROGRAM, *command], capture_output=True, text=True, check=False)
        if "skipped" in done.stderr:
            self.skipTest(done.stderr.strip())
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual({"net1", "net2"}, {"net1", "net2"} & set(done.stdout.splitlines()), done.stdout)

    def ended_by(self, number: signal.Signals) -> None:
        """Sends a signal while the script measures. Asserts that nothing of the network is left."""
        mark = f"HVD_NETWORK_TEST={os.getpid()}"
        with tempfile.TemporaryDirectory(prefix="hvd_network_test_") as folder:
            before = names_outside()
            variables = environment({"HVD_NETWORK_TEST": str(os.getpid()), "TMPDIR": folder})
            command = [BENCH, "--bench", PROGRAM, "--nodes", "2", "--latency-us", "1000"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": variables}
            with subprocess.Popen(command, **pipes) as running:
                while line := running.stdout.readline():
                    if line.startswith("# 2 nodes"):
                        break  # this line follows the calibration of the network
                if not line:
                    self.skip_or_fail(running.wait(), running.stderr.read())
                measuring = eventually(lambda: any("--replay" in words for words in processes_of(mark)))
                self.assertTrue(measuring, processes_of(mark))
                running.send_signal(number)
                self.assertIn(running.wait(10), (-number, 128 + number))
            self.assertTrue(eventually(lambda: not processes_of(mark)), processes_of(mark))
            self.assertEqual(os.listdir(folder), [])
            self.assertEqual(names_outside(), before)

    def test_nothing_is_left_when_it_is_killed(self) -> None:
        self.ended_by(signal.SIGKILL)

    def test_nothing_is_left_when_it_is_interrupted(self) -> None:
        self.ended_by(signal.SIGINT)

    def test_nothing_is_left_when_it_is_terminated(self) -> None:
        self.ended_by(signal.SIGTERM)

    def test_where_namespaces_are_not_permitted_the_reason_is_said(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            refusing = Path(folder) / "unshare"
            refusing.write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
            refusing.chmod(0o755)
            variables = environment({"PATH": f"{folder}:{os.environ['PATH']}"})
            command = [BENCH, "--bench", PROGRAM]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        self.assertEqual(done.returncode, SKIPPED, done.stderr)
        not_permitted = r"network namespaces are not permitted here \(unshare failed: .*\)"
        missing = r"no (unshare|nsenter|ip|mpirun)(, \w+)* here \(Debian: apt-get install .*\)"
        self.assertRegex(done.stderr, rf"^network_bench: skipped: ({not_permitted}|{missing})\n$")

    def refused(self, text: str, *arguments: str) -> None:
        """Asserts that the script refuses these arguments before it makes the network. Its last line has `text`."""
        with self.subTest(arguments):
            command = [BENCH, "--bench", PROGRAM, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(text, done.stderr.splitlines()[-1])
            self.assertEqual(done.stdout, "")

    def test_bad_input(self) -> None:
        for arguments, text in (
            (["--rate-mbit", "0"], "--rate-mbit: '0' is not a number from 0.5 to"),
            (["--rate-mbit", "250,fast"], "'fast' is not a number"),
            (["--rate-mbit", "1e-9"], "--rate-mbit: '1e-9'"),
            (["--rate-mbit", "nan"], "--rate-mbit: 'nan'"),
            (["--nodes", "1"], "--nodes: '1' is not a whole number from 2 to"),
            (["--nodes", "2;4"], "'2;4' is not a whole number"),
            (["--nodes", "1000000000000"], "--nodes"),
            (["--latency-us", "-1"], "--latency-us"),
            (["--latency-us", "inf"], "--latency-us: 'inf'"),
            (["--latency-us", "0,nan"], "--latency-us: 'nan'"),
            (["--mib", "nan"], "--mib: 'nan'"),
            (["--mib", "inf"], "--mib: 'inf'"),
            (["--mib", "0.001"], "--mib must be at least 4 KiB for each"),
            (["--compute-ms", "nan"], "--compute-ms: 'nan'"),
            (["--algorithms", "auto,tree"], "'tree': choose from"),
            (["--iterations", "0"], "--iterations"),
            (["--nodes", "2", "--"], "name a program behind --"),
            (["--bench", "/none"], "no program at /none"),
            (["--bench", "/bin/true", "--json"], "is not hvd_bench"),
        ):
            self.refused(text, *arguments)

    def test_more_than_the_processors_carry_is_refused(self) -> None:
        cores = os.cpu_count() or 1
        self.refused(f"{cores} cores were only seen to carry {6 * cores}", "--nodes", str(6 * cores + 1))
        rate = f"{1200 * cores + 1}"
        self.refused(f"2 nodes at {rate} Mbit/s: {cores} cores carry", "--nodes", "2", "--rate-mbit", rate)

    def test_a_store_that_cannot_be_kept_is_refused(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "loop").symlink_to("loop")
            (folder / "covered").symlink_to("/run/x.db")
            (folder / "notes.txt").write_text("# Notes")
            os.mkfifo(folder / "fifo")
            for db, text in (
                ("/run/x.db", "/run/x.db is below /run, where the measurement puts a file system of its own"),
                (folder / "covered", "/run/x.db is below /run"),
                ("/none/x.db", "no directory /none"),
                (folder / "loop", "leads back to itself"),
                (folder / "notes.txt", "not an SQLite file"),
                (folder / "fifo", "not a file"),
                (folder, "not a file"),
            ):
                self.refused(text, "--db", str(db))
            self.assertEqual((folder / "notes.txt").read_text(), "# Notes")

    def test_a_program_that_the_measurement_would_hide_is_refused(self) -> None:
        try:
            folder = tempfile.TemporaryDirectory(dir="/run", prefix="hvd_network_test_")
        except OSError as error:
            self.skipTest(str(error))
        with folder:
            program = Path(folder.name) / "hvd_bench"
            program.write_text("#!/bin/sh\necho hvd_bench 0\n")
            program.chmod(0o755)
            self.refused("hvd_bench is below /run", "--bench", str(program))

    def test_output_that_goes_nowhere(self) -> None:
        small = f"{BENCH} --bench {PROGRAM} --nodes 2 --latency-us 0 --mib 0.1 --buckets 1 --iterations 1"
        for where, code, lines in ((">&-", 2, 1), (">/dev/full", 2, 1), ("| head -1", 0, 0)):
            with self.subTest(where):
                command = ["bash", "-c", f"set -o pipefail; {small} --overlap no {where}"]
                kept = {"capture_output": True, "text": True, "check": False}
                done = subprocess.run(command, **kept, env=environment(), timeout=HANG)
                if done.returncode == SKIPPED:
                    self.skipTest(done.stderr.strip())
                self.assertEqual((done.returncode, len(done.stderr.splitlines())), (code, lines), done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
