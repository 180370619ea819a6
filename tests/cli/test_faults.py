"""Ranks die, hang or disagree, or a signal arrives. Each of these faults must end the run on all ranks in time. The run
must store the samples that it has taken, and mark itself incomplete in the store."""

import os
import pathlib
import re
import shutil
import signal
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from program import (
    ENDLESS,
    HANG,
    MPIRUN,
    PROGRAM,
    SLEEPING,
    TINY,
    TRAINING,
    TRAINING_ENDLESS,
    ProgramTest,
    Result,
    Running,
    eventually,
    execute,
    mpirun_is_open_mpi_5,
    needs_mpi,
    per_rank,
    retried_if_mpirun_kills_early,
    run,
    takes_two_commands,
)


def gone(pid: int) -> bool:
    """Waits until the process has ended. A zombie counts as ended. Returns False if it is still there after HANG."""

    def ended() -> bool:
        try:
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    return eventually(ended)


class Signals(ProgramTest):
    def interrupt(self, number: signal.Signals, command: list[str]) -> None:
        running = Running([PROGRAM, *command, "--db", str(self.db)], until="measuring")
        running.send(number)
        self.refused(running.finish(), 7, number.name)
        self.assert_incomplete_with_samples(number.name)

    def test_sigterm(self) -> None:
        self.interrupt(signal.SIGTERM, TRAINING_ENDLESS)

    def test_sigint(self) -> None:
        self.interrupt(signal.SIGINT, ENDLESS)

    def test_sigusr1(self) -> None:
        self.interrupt(signal.SIGUSR1, ENDLESS)

    def test_loopback(self) -> None:
        self.interrupt(signal.SIGTERM, [*TRAINING_ENDLESS, "--ranks", "2"])

    @needs_mpi
    @retried_if_mpirun_kills_early
    def test_sigterm_to_mpirun(self) -> None:
        running = Running([str(MPIRUN), "-n", "2", PROGRAM, *ENDLESS, "--db", str(self.db)], until="measuring")
        self.wait_until_saved()  # if the launcher kills a rank at once, unsaved samples are lost
        running.send(signal.SIGTERM)
        result = running.finish()
        self.assertNotEqual(result.code, 0, result)
        if not mpirun_is_open_mpi_5():
            self.assertEqual(len(result.errors), 1, result)
        for error in result.errors:
            self.assertIn("SIGTERM", error)
        self.assert_incomplete_with_samples("SIGTERM")


class Steps(ProgramTest):
    """A step that never ends, where no other process waits for the rank."""

    def hung(self, *arguments: str) -> Result:
        """Runs a replay until it has saved samples, then makes a step hang. Returns the result."""
        hang = self.folder / "hang"
        asan = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
        env = {"LD_PRELOAD": os.environ["HVD_NEVER_RETURNS"], "HVD_TEST_HANG": str(hang), "ASAN_OPTIONS": asan}
        running = Running([PROGRAM, *ENDLESS, *arguments, "--db", str(self.db)], env, until="measuring")
        self.wait_until_saved()
        hang.touch()
        return running.finish()

    def test_of_the_only_rank(self) -> None:
        result = self.hung("--deadline-seconds", "10")
        line = self.refused(result, 5, "within 10 s", "raise --deadline-seconds", f"go to {self.db}, marked incomplete")
        self.assertRegex(line, r"rank 0 \(host \S+\): forward and backward of step [1-9]\d* ")
        self.assert_incomplete_with_samples("did not end within 10 s")

    def test_of_a_rank_that_is_a_thread(self) -> None:
        # Rank 1 finds at its deadline that rank 0 hangs, but it cannot end the process while rank 0's thread runs.
        result = self.hung("--ranks", "2", "--deadline-seconds", "5")
        self.refused(result, 5, "rank 0 (host ", "did not end within 10 s", "raise --deadline-seconds")
        self.assert_incomplete_with_samples("did not end within 10 s")

    def test_of_the_first_step(self) -> None:
        profile = self.folder / "endless.replay"
        sleeping = pathlib.Path(SLEEPING[1]).read_text()
        profile.write_text(sleeping.replace("backward_end_seconds 0.03", "backward_end_seconds 86400"))
        result = run("--replay", str(profile), "--startup-deadline-seconds", "2")
        self.refused(result, 5, "of step 0 did not end within 2 s", "raise --startup-deadline-seconds")


@needs_mpi
class Ranks(ProgramTest):
    def two_ranks(self, *arguments: str, work: list[str] = ENDLESS) -> Running:
        command = [str(MPIRUN), "-n", "2", PROGRAM, *work, "--no-check", *arguments, "--db", str(self.db)]
        return Running(command, until="measuring")

    @retried_if_mpirun_kills_early
    def test_one_is_killed(self) -> None:
        running = self.two_ranks(work=TRAINING_ENDLESS)
        self.wait_until_saved()  # if the launcher kills a rank at once, unsaved samples are lost
        os.kill(running.rank_pid(1), signal.SIGKILL)
        result = running.finish()
        self.assertNotEqual(result.code, 0, result)
        self.assertEqual(len(result.errors), 1, result)
        self.assertIn("rank 1", result.errors[0])
        self.assert_incomplete_with_samples("rank 1")

    @retried_if_mpirun_kills_early
    def test_one_is_killed_with_a_ring(self) -> None:
        running = self.two_ranks("--algorithm", "ring")
        self.wait_until_saved()
        os.kill(running.rank_pid(1), signal.SIGKILL)
        result = running.finish()
        self.assertEqual(len(result.errors), 1, result)
        self.assertRegex(result.errors[0], "rank 1 .* is lost: its process [0-9]+ has ended")
        self.assert_incomplete_with_samples("rank 1")

    @retried_if_mpirun_kills_early
    def test_one_is_killed_while_the_network_is_built(self) -> None:
        command = [str(MPIRUN), "-n", "2", PROGRAM, *TRAINING_ENDLESS, "--classes", "30000", "--db", str(self.db)]
        running = Running(command, until="building")
        os.kill(running.rank_pid(1), signal.SIGKILL)
        result = running.finish()
        if mpirun_is_open_mpi_5() and not result.errors:
            # Rank 0 is still building its network and does not wait for rank 1. Rank 0 learns of the loss from SIGTERM,
            # too late to print.
            self.assertRegex(result.err, r"process rank 1 with PID [0-9]+ on node \S+ exited on\s+signal 9")
            return
        self.assertEqual(len(result.errors), 1, result)
        self.assertRegex(result.errors[0], "rank 1 .* is lost: its process [0-9]+ has ended")

    def test_rank_0_is_killed(self) -> None:
        running = self.two_ranks()
        os.kill(running.rank_pid(0), signal.SIGKILL)
        result = running.finish()
        self.assertNotEqual(result.code, 0, result)
        self.assertIn("rank 0", result.err)
        (partial,) = self.folder.glob("*.partial")
        self.assertEqual(self.query("SELECT status FROM run", partial, "rw"), [("running",)])

    def test_mpirun_is_killed(self) -> None:
        running = self.two_ranks()
        self.wait_until_saved()
        ranks = [running.rank_pid(rank) for rank in (0, 1)]
        running.send(signal.SIGKILL)
        result = running.finish()
        (partial,) = self.folder.glob("*.partial")
        self.assertIn(f"until then {partial}", result.out)
        self.assertTrue(all(gone(pid) for pid in ranks), "nobody is left behind")

    def test_one_hangs(self) -> None:
        running = self.two_ranks("--deadline-seconds", "20")
        pid = running.rank_pid(1)
        begin = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        result = running.finish()
        self.assertGreater(time.monotonic() - begin, 15, "the deadline is there to be used")
        self.refused(result, 5, "rank 1")
        self.assert_incomplete_with_samples("rank 1")
        self.assertTrue(gone(pid), "nobody is left behind")
        self.assertRegex(result.errors[0], r"rank 1 \(host \S+\), which did not arrive; it (left|entered) \w+ \d+")
        # Exactly one warning must come, a quarter of the deadline after the wait began. On a busy machine, a rank that
        # got no processor time may have caused warnings before.
        waits = r"hvd_bench: warning: rank 0 \(host \S+\) has waited (\d+)\.\d s in (.*) for rank 1 "
        warnings = [line for line in result.err.splitlines() if re.match(waits, line)]
        waited, collective = re.match(waits, warnings[-1]).groups()
        self.assertGreaterEqual(int(waited), 5, result)
        self.assertEqual(len([line for line in warnings if f" in {collective} for " in line]), 1, result)
        self.assertIn("rank 1 (host", warnings[-1].split("roll call: ")[1])
        # The table of collectives must follow the error on standard error, and must be in the store.
        behind = result.err.split(result.errors[0])[1]
        self.assertIn("\nthe last collectives that each rank entered:\nrank 0 (host ", behind)
        self.assertRegex(behind, r"\nrank 1 \(host \S+\): \w+ \d+.*, entered [0-9.]+ s ago, ")
        tables = self.query("SELECT value FROM provenance WHERE key = 'engine.flight_record'")
        self.assertEqual(len(tables), self.query("SELECT count(*) FROM run")[0][0])
        self.assertIn("rank 1 (host ", tables[0][0])

    def test_one_hangs_in_startup(self) -> None:
        command = [PROGRAM, *ENDLESS, "--startup-deadline-seconds", "5", "--db", str(self.db)]
        running = Running(per_rank(command, ["sh", "-c", 'kill -STOP $$; exec "$@"', "sh", *command]))
        pid = running.rank_pid(1, wait=HANG)
        result = running.finish()
        self.assertGreater(result.seconds, 5, "the deadline is there to be used")
        self.refused(result, 5, "--startup-deadline-seconds")
        self.assertTrue(gone(pid), "nobody is left behind")

    def test_rank_0_hangs(self) -> None:
        running = self.two_ranks("--deadline-seconds", "20")
        os.kill(running.rank_pid(0), signal.SIGSTOP)
        result = running.finish().ended_with(5)
        self.assertEqual(len([line for line in result.errors if "rank 0" in line]), 1, result)

    def test_one_is_told_to_stop(self) -> None:
        running = self.two_ranks()
        os.kill(running.rank_pid(1), signal.SIGUSR1)
        result = running.finish()
        self.refused(result, 7, "SIGUSR1", "rank 1")
        self.assert_incomplete_with_samples("SIGUSR1")


@needs_mpi
class Joining(ProgramTest):
    def test_one_never_joins(self) -> None:
        first = [PROGRAM, *ENDLESS, "--startup-deadline-seconds", "5", "--db", str(self.db)]
        with ThreadPoolExecutor() as both:  # runs both at the same time, because starting MPI may take 30 s
            results = both.map(execute, (per_rank(first, second) for second in (["true"], ["sleep", "100"])))
        for result in results:
            self.refused(result, 5, "some of these processes did not join the MPI world", "OMPI_COMM_WORLD_SIZE=2")
            self.assertIn("raise --startup-deadline-seconds", result.errors[0])
        self.assertEqual(list(self.folder.iterdir()), [])


@needs_mpi
class Disagreement(ProgramTest):
    """tests/bench/world/settings_test.cpp compares every option."""

    def apart(self, first: list[str], second: list[str]) -> list[str]:
        command = [PROGRAM, *TRAINING, "--no-db"]
        return per_rank([*command, *first], [*command, *second])

    def test_bucket_plans_differ(self) -> None:
        result = execute(self.apart(["--bucket-mb", "1"], ["--bucket-mb", "2"]))
        self.refused(result, 6, "rank 1")

    def test_a_variable_that_one_rank_lacks(self) -> None:
        command = [PROGRAM, *TRAINING, "--no-db", "--schedule", "negotiated"]
        result = execute(per_rank(command, ["env", "HOROVOD_FUSION_THRESHOLD=1", *command]))
        self.refused(result, 6, "--fusion-threshold-mb", "HOROVOD_* variables")

    def test_vectors_are_limited_on_one_rank(self) -> None:
        # All levels compute the same bits, so only the comparison of variables finds the difference.
        command = [PROGRAM, *TRAINING, "--no-db"]
        result = execute(per_rank(["env", "HVD_MAX_CPU_ISA=AVX2", *command], ["env", "HVD_MAX_CPU_ISA=SSE2", *command]))
        self.refused(result, 6, "HVD_MAX_CPU_ISA is AVX2 on rank 0", "SSE2 on rank 1")

    def test_programs_differ_in_bytes_alone(self) -> None:
        other = self.folder / "bin" / "hvd_bench"
        other.parent.mkdir()
        modules = pathlib.Path(PROGRAM).resolve().parents[1] / "lib" / "hvd_bench"  # through which it calls MPI
        shutil.copytree(modules, self.folder / "lib" / "hvd_bench")
        other.write_bytes(pathlib.Path(PROGRAM).read_bytes() + b" ")
        other.chmod(0o755)
        result = execute(per_rank([PROGRAM, *TINY, "--no-db"], [str(other), *TINY, "--no-db"])).ended_with(0)
        self.assertRegex(
            result.out + result.err,
            r"the ranks are not alike, and all wait for the slowest\. Compared with rank 0, rank 1 \(host \S+\): "
            r"program is [0-9a-f]{16}, not [0-9a-f]{16}",
        )

    def test_layouts_differ(self) -> None:
        # With 1024 classes, every parameter has equally many elements in blocks of 8 (AVX2) and of 16 (AVX-512).
        command = [PROGRAM, "--model", "resnet50", "--image-size", "64", "--batch-size", "2", "--classes", "1024"]
        command += ["--threads", "1", "--num-iters", "1", "--no-db"]
        wide = ["env", "-u", "ONEDNN_MAX_CPU_ISA", "-u", "DNNL_MAX_CPU_ISA"]
        narrow = ["env", "ONEDNN_MAX_CPU_ISA=AVX2", "DNNL_MAX_CPU_ISA=AVX2"]
        if "AVX-512" not in execute([PROGRAM, "doctor"]).out:
            self.skipTest("needs AVX-512: oneDNN stores parameters alike with AVX2 and with SSE4.1")
        result = execute(per_rank([*wide, *command], [*narrow, *command]))
        self.refused(result, 6, "different layouts", "rank 0 (host ", "avx512", "rank 1 (host ", "avx2)")

    def test_only_one_rank_traces(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            result = execute(self.apart([], ["--timeline-filename", f"{folder}/t.json"]))
            self.refused(result, 6, "--timeline-filename is off on rank 0")

    def test_only_the_second_command_is_wrong(self) -> None:
        if not takes_two_commands():
            self.skipTest("`mpirun -n 1 true : -n 1 true` fails here (a fault of Open MPI 5.0.7 in Debian 13)")
        command = [PROGRAM, *TRAINING, "--no-db"]
        split = [str(MPIRUN), "-n", "1", *command, ":", "-n", "1", *command, "--model", "resnet102"]
        result = execute(split)
        self.refused(result, 2, "rank 1", "resnet102")


if __name__ == "__main__":
    unittest.main(verbosity=2)
