"""Runs hvd_bench in odd surroundings: paths that are not files, vanishing folders, closed streams, ignored signals."""

import json
import os
import pathlib
import shlex
import signal
import stat
import tempfile
import time
import unittest
from typing import ClassVar

from program import (
    ENDLESS,
    MPIRUN,
    PROGRAM,
    TINY,
    TRAINING,
    TRAINING_ENDLESS,
    ProgramTest,
    Result,
    Running,
    execute,
    may_mount,
    query,
    run,
)


def shell(script: str, *arguments: str) -> Result:
    """Runs `script`, in which "$@" is hvd_bench with `arguments`."""
    return execute(["bash", "-c", script, "bash", PROGRAM, *arguments])


class Files(ProgramTest):
    def test_a_pipe_is_not_waited_for(self) -> None:
        os.mkfifo(self.db)
        for command in (TINY, ["doctor"]):
            result = run(*command, "--db", str(self.db))
            self.assertNotEqual(result.code, 0)
            self.assertIn("is a pipe or a device", result.out + result.err)
        self.assertTrue(stat.S_ISFIFO(self.db.stat().st_mode), "it is left as it was")

    def test_a_link_that_leads_nowhere(self) -> None:
        self.db.symlink_to(self.folder / "none.db")
        self.refused(run(*TINY, "--db", str(self.db)), 2, "link to a file that is not there")

    def test_a_link_to_itself(self) -> None:
        self.db.symlink_to(self.db)
        self.refused(run(*TINY, "--db", str(self.db)), 2, "runs.db", "use another --db")

    def test_a_name_that_is_too_long(self) -> None:
        # A name of 300 bytes is too long for any file. A name of 250 bytes is too long once .partial is added to it.
        for length in (300, 250):
            self.refused(run(*TINY, "--db", str(self.folder / ("n" * length))), 2, "File name too long")
        self.assertEqual(list(self.folder.iterdir()), [])
        deep = self.folder / ("d" * 200) / ("e" * 200)
        deep.mkdir(parents=True)
        self.refused(run(*TINY, "--db", str(deep / ("n" * 100))), 2, "and SQLite opens paths of at most ")
        self.assertEqual(list(deep.iterdir()), [])

    def test_a_replay_does_not_replace_something_else(self) -> None:
        other = self.folder / "thesis"
        other.write_text("my thesis")
        self.refused(run(*TRAINING, "--record-replay", str(other)), 2, "thesis: is not a replay file")
        self.assertEqual(other.read_text(), "my thesis")
        self.refused(run(*TRAINING, "--record-replay", str(self.folder / "none" / "x")), 2, "cannot be written")

    def test_a_timeline_does_not_replace_something_else(self) -> None:
        for rank in (0, 1):
            other = self.folder / f"thesis.{rank}.txt"
            other.write_text("my thesis")
            line = [*TINY, "--ranks", "2", "--timeline-filename", str(self.folder / "thesis.txt"), "--db", str(self.db)]
            self.refused(run(*line), 2, f"{other} exists and is not a trace of hvd_bench; it was not changed")
            self.assertEqual(other.read_text(), "my thesis")
            self.assertEqual(list(self.folder.iterdir()), [other])
            other.unlink()

    def test_a_timeline_is_json(self) -> None:
        for schedule in ("static", "negotiated"):
            name = str(self.folder / f"{schedule}.json")
            line = [*TINY, "--ranks", "2", "--schedule", schedule, "--timeline-filename", name, "--no-db"]
            self.assertEqual(run(*line).code, 0)
            for rank in (0, 1):
                trace = (self.folder / f"{schedule}.{rank}.json").read_text()
                self.assertEqual({event["pid"] for event in json.loads(trace)}, {rank + 1}, "pid 0 is the idle process")
            self.assertEqual(run(*line).code, 0, "a trace replaces a trace")

    def test_the_timeline_of_a_killed_rank_opens(self) -> None:
        """Viewers open an array without its end."""
        name = self.folder / "t.json"
        name.with_suffix(".0.json").write_text('{"displayTimeUnit":"ms","traceEvents":[\n')  # a trace of version 0.1.0
        command = [PROGRAM, *ENDLESS, "--no-db", "--timeline-filename", str(name)]
        running = Running(command, until="measuring")
        running.send(signal.SIGKILL)
        running.finish()
        trace = name.with_suffix(".0.json").read_text()
        self.assertIn("process_name", [event["name"] for event in json.loads(trace + "]")])

    def test_outputs_that_are_one_file(self) -> None:
        """Two outputs that are the same file, by any spelling or link, must be refused before anything is measured."""
        (self.folder / "sub").mkdir()
        (self.folder / "link").symlink_to(self.db.name)
        for replay in (str(self.db), f"{self.folder}/sub/../{self.db.name}", str(self.folder / "link")):
            line = [*TRAINING_ENDLESS, "--db", str(self.db), "--record-replay", replay]
            self.refused(run(*line), 2, f"--db and --record-replay name the same file ({replay})")
        self.assertFalse(self.db.exists())
        self.db.touch()
        os.link(self.db, self.folder / "hard")
        line = [*TRAINING_ENDLESS, "--db", str(self.folder / "hard"), "--record-replay", str(self.db)]
        self.refused(run(*line), 2, "name the same file")

    def test_a_store_that_is_cut_off_or_is_standard_output(self) -> None:
        self.assertEqual(run(*TINY, "--db", str(self.db), "--quiet").code, 0)
        os.truncate(self.db, self.db.stat().st_size - 4096)
        self.refused(run(*ENDLESS, "--db", str(self.db)), 2, "runs.db: is cut off after ", "restore a copy")
        file = self.folder / "out"
        for name in ("/dev/stdout", str(file)):
            result = shell(f'exec "$@" --db {name} > {shlex.quote(str(file))}', *ENDLESS)
            self.refused(result, 2, f"--db {name}: standard output or standard error goes there")
            self.assertEqual(file.read_bytes(), b"")
        self.refused(run(*ENDLESS, "--db", "/dev/stdout"), 2, "/dev/stdout: is a pipe or a device")

    def test_files_that_cannot_be_written_in_the_end(self) -> None:
        full = self.folder / "full"
        full.symlink_to("/dev/full")
        for more in ([], ["--json"]):
            result = run(*TRAINING, "--db", str(self.db), "--record-replay", str(full), *more).ended_with(2)
            self.assertEqual(len(result.errors), 1, result)
            self.assertIn("full: cannot write the replay file", result.errors[0])
            self.assertIn("images_per_second" if more else "total images/sec: ", result.out)
        self.assertEqual(self.query("SELECT DISTINCT status FROM run"), [("complete",)])

    @unittest.skipUnless(may_mount(), "needs mount namespaces")
    def test_a_timeline_that_cannot_be_written_in_the_end(self) -> None:
        disk = self.folder / "disk"
        disk.mkdir()
        small = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=4k none "$0" && exec "$@"', str(disk)]
        traced = [PROGRAM, *TINY, "--num-iters", "20", "--no-db", "--timeline-filename", str(self.folder / "t.json")]
        commands = [(0, traced), (1, [*traced, "--ranks", "2"])]
        commands += [(1, [str(MPIRUN), "-n", "2", *traced])] if MPIRUN else []
        for rank, command in commands:
            file = self.folder / f"t.{rank}.json"
            file.unlink(missing_ok=True)
            file.symlink_to(disk / "trace")
            result = execute([*small, *command]).ended_with(2)
            self.assertEqual(len(result.errors), 1, result)
            self.assertIn(file.name, result.errors[0])
            self.assertEqual(len(self.totals(result)), 1, result)
            file.unlink()

    def test_pipes_that_nobody_writes_or_reads(self) -> None:
        pipe = self.folder / "pipe.0.json"
        os.mkfifo(pipe)
        self.refused(run(*TINY, "--timeline-filename", str(self.folder / "pipe.json")), 2, "pipe.0.json")
        self.refused(run("--replay", str(pipe)), 2, "pipe.0.json: is not a regular file")
        result = run("stored", "cell", str(pipe))
        self.assertEqual((result.code, result.out), (2, ""), result)

    def test_the_working_directory_is_gone(self) -> None:
        gone = shlex.quote(str(self.folder / "gone"))
        script = f'mkdir {gone} && cd {gone} && rmdir {gone} && exec "$@"'
        self.refused(shell(script, *TINY), 2, "hvd_bench.db: the working directory is gone")
        self.assertEqual(shell(script, *TINY, "--db", str(self.db)).code, 0)

    def test_a_directory_whose_name_is_not_utf8(self) -> None:
        odd = self.folder / os.fsdecode(b"caf\xe9")
        odd.mkdir()
        shell(f'cd {shlex.quote(str(self.folder))}/caf* && exec "$@"', *TINY, "--quiet").ended_with(0)
        (odd / "hvd_bench.db").rename(self.db)
        # Python's sqlite3 refuses text that is not UTF-8, so reading the value also shows that it is UTF-8.
        ((line,),) = self.query("SELECT command_line FROM session")
        self.assertIn("caf\ufffd", line)


class Memory(ProgramTest):
    def test_too_little_address_space(self) -> None:
        # Under the smallest limit the program can just be loaded. Under the largest limit there is room for the network
        # of one rank and a part of the other rank's network.
        limits = [90_000, 110_000, 120_000, 160_000, 240_000, 300_000, 600_000]
        if shell(f'ulimit -v {limits[0]}; exec "$@"', "--version").code != 0:
            self.skipTest("the program does not load under a limit on its address space (a sanitizer's)")
        for limit in limits:
            result = shell(f'ulimit -v {limit}; exec "$@"', *TRAINING, "--device", "cpu", "--ranks", "2", "--no-db")
            self.refused(result, 8)


class Streams(ProgramTest):
    def test_closed_standard_output_is_said_at_once(self) -> None:
        result = shell('exec "$@" >&-', *TINY, "--db", str(self.db))
        self.refused(result, 2, "standard output cannot be written")
        self.assertFalse(self.db.exists())

    def test_a_reader_that_has_seen_enough(self) -> None:
        script = 'set -o pipefail; "$@" --quiet | true'
        usual = run(*TINY, "--quiet", "--db", str(self.folder / "usual.db")).ended_with(0).seconds
        running = Running(["bash", "-c", script, "bash", PROGRAM, *TINY, "--db", str(self.db)])
        while not self.db.exists():
            self.assertIsNone(running.process.poll())
            time.sleep(0.05)
        stored = time.monotonic()
        result = running.finish()
        self.refused(result, 2, "standard output cannot be written", f"the results are in {self.db}")
        # The program's own waits take 10 s.
        took = time.monotonic() - stored
        self.assertLess(took, 8 + 4 * usual, "after the results are stored there is nothing to wait for")
        self.assertEqual(self.query("SELECT status FROM run"), [("complete",)])

    def test_closed_standard_error_takes_no_descriptor_of_ours(self) -> None:
        running = Running(["bash", "-c", 'exec "$@" 2>&-', "bash", PROGRAM, *ENDLESS, "--db", str(self.db)])
        self.wait_until_saved()  # no output can say that measuring has begun
        running.send(signal.SIGTERM)
        self.assertEqual(running.finish().code, 7)

    def test_no_escape_sequence_reaches_the_terminal(self) -> None:
        result = run("--model", "vgg\x1b[31m")
        self.assertNotIn("\x1b", result.err)
        self.assertIn("'vgg\\x1b[31m'", result.err)

    def test_nor_one_of_a_file_or_a_store(self) -> None:
        odd = self.folder / "a\x1b[2J\nstored b.db"
        result = run(*TINY, "--db", str(odd), "--label", "k=v\x1b[2J\nw").ended_with(0)
        listed = execute([PROGRAM, "stored", "k", str(odd)])
        for text in (result.out, run("doctor", "--db", str(odd)).out, listed.out):
            self.assertNotRegex(text, "\x1b|\nstored b|^w")
        self.assertIn("a\\x1b[2J\\nstored b.db\n", result.out)
        self.assertEqual(listed.out, "v\\x1b[2J\\nw\n", listed)


class Parent(ProgramTest):
    def hung_up(self, *command: str) -> Result:
        """Asserts that a command under nohup survives SIGHUP and ends on SIGTERM. Returns its result."""
        running = Running(["nohup", *command], until="measuring")
        running.send(signal.SIGHUP)
        time.sleep(1.5)  # a program that ends on SIGHUP has ended by now, or reports SIGHUP below
        self.assertIsNone(running.process.poll(), "still measuring")
        running.send(signal.SIGTERM)
        result = running.finish()
        self.refused(result, 7, "SIGTERM")
        return result

    def test_nohup_is_heeded(self) -> None:
        self.hung_up(PROGRAM, *ENDLESS, "--db", str(self.db))

    def test_nohup_is_heeded_though_a_library_takes_the_signal(self) -> None:
        # Like UCX, this library installs a handler for SIGHUP when it is loaded, before main().
        asan = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
        variables = [f"LD_PRELOAD={os.environ['HVD_TAKES_SIGHUP']}", f"ASAN_OPTIONS={asan}"]
        result = self.hung_up("env", *variables, PROGRAM, *ENDLESS, "--no-db")
        self.assertNotIn("SIGHUP reached the library", result.err)


class Numa(ProgramTest):
    """Tests facts and cautions on a machine with NUMA nodes, which hwloc invents from its environment variables."""

    # Each node has one processor, so two processors are on two nodes. With HWLOC_THISSYSTEM, hwloc treats the nodes as
    # real.
    NODES: ClassVar = {"HWLOC_SYNTHETIC": "numa:64 core:1 pu:1", "HWLOC_THISSYSTEM": "1"}

    hwloc = False

    @classmethod
    def setUpClass(cls) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "runs.db"
            run(*TINY, "--db", str(file))
            rows = query("SELECT value FROM provenance WHERE key = 'numa.topology'", file)
            cls.hwloc = bool(rows) and rows[0][0].startswith("hwloc")

    def setUp(self) -> None:
        super().setUp()
        if not self.hwloc:
            self.skipTest("this build has no hwloc")
        if len(os.sched_getaffinity(0)) < 2 or max(os.sched_getaffinity(0)) >= 64:
            self.skipTest("needs two of the processors 0 to 63")

    def fact(self, result: Result, key: str) -> str:
        self.assertEqual(result.code, 0, result)
        rows = self.query(f"SELECT DISTINCT value FROM provenance WHERE key = '{key}'")
        return rows[0][0] if rows else ""

    def test_ranks_on_several_nodes_are_a_caution(self) -> None:
        result = run(*TINY, "--ranks", "2", "--db", str(self.db), env=self.NODES)
        self.assertIn("caution: rank 0 and 1 more may run on NUMA nodes ", result.out)
        self.assertRegex(self.fact(result, "numa.of_rank"), r"\Anodes [0-9,-]+: ranks 0-1\Z")
        self.assertIn("--map-by numa --bind-to numa", self.fact(result, "caution.rank_across_numa_nodes"))
        self.assertIn(" (set: HWLOC_SYNTHETIC, HWLOC_THISSYSTEM)", self.fact(result, "numa.topology"))
        self.assertEqual(self.fact(result, "env.HWLOC_SYNTHETIC"), self.NODES["HWLOC_SYNTHETIC"])
        new = "key LIKE 'numa.%' OR key LIKE '%HWLOC%'"
        marked = self.query(f"SELECT key FROM provenance WHERE in_fingerprint AND ({new})")
        self.assertEqual({key for (key,) in marked} - {"numa.nodes"}, set())

    def test_collectives_carry_the_caution_too(self) -> None:
        file = self.folder / "coll.json"
        quick = ["-b", "8", "-e", "8", "--max-time", "1", "-J", str(file)]
        result = execute([PROGRAM, "coll", "--ranks", "2", *quick], self.NODES).ended_with(0)
        self.assertIn("# caution: rank 0 and 1 more may run on NUMA nodes ", result.out)
        config = json.loads(file.read_text())["config"]
        self.assertIn(": ranks 0-1", config["numa"])
        self.assertEqual(len(config["cautions"]), 1)

    def test_doctor_says_what_to_do(self) -> None:
        result = run("doctor", env=self.NODES)
        self.assertRegex(result.out, r"note +NUMA +64 nodes: 0 \(processors 0, 1 core\(s\).*; this process may run on ")
        self.assertIn("-> bind each rank to one node: srun --cpu-bind=ldoms", result.out)

    def test_a_kernel_that_lists_two_nodes_in_one_socket(self) -> None:
        """The test writes a /sys with two nodes in one socket. hwloc makes a group object for each such node. If
        hvd_bench filtered out groups, every node would have all processors."""
        kernel = self.folder / "sys" / "devices" / "system"
        for cpu in range(4):
            topology = kernel / "cpu" / f"cpu{cpu}" / "topology"
            topology.mkdir(parents=True)
            own = {"core_cpus": f"{1 << cpu:x}", "core_id": str(cpu), "package_cpus": "f", "physical_package_id": "0"}
            for name, value in own.items():
                (topology / name).write_text(value + "\n")
        for node in (0, 1):
            folder = kernel / "node" / f"node{node}"
            folder.mkdir(parents=True)
            (folder / "cpumap").write_text(f"{3 << 2 * node:x}\n")
            (folder / "meminfo").write_text(f"Node {node} MemTotal: 1048576 kB\n")
        (kernel / "node" / "online").write_text("0-1\n")
        (kernel / "cpu" / "online").write_text("0-3\n")
        result = run("doctor", env={"HWLOC_FSROOT": str(self.folder)})
        self.assertIn(
            "2 nodes: 0 (processors 0-1, 2 core(s), 1.00 GiB), 1 (processors 2-3, 2 core(s), 1.00 GiB); hwloc",
            result.out,
        )

    def test_files_that_hwloc_cannot_read(self) -> None:
        for file in ("/nonexistent", "/etc/passwd"):
            result = run(*TINY, "--db", str(self.db), env={"HWLOC_XMLFILE": file})
            self.assertIn("(set: HWLOC_XMLFILE)", self.fact(result, "numa.topology"))
            self.db.unlink()


class Processors(ProgramTest):
    # Convolutions of this size are compiled for a number of threads, and wait for ever for a thread that is not given.
    COMPILED: ClassVar[list[str]] = "--model resnet50 --image-size 96 --batch-size 2 --classes 10".split()
    SHORT: ClassVar[list[str]] = ["--num-warmup-batches", "0", "--num-iters", "2"]
    FEWER: ClassVar[list[dict[str, str]]] = [{"OMP_THREAD_LIMIT": "1"}, {"OMP_MAX_ACTIVE_LEVELS": "0"}]

    def test_more_threads_than_openmp_gives(self) -> None:
        for env in self.FEWER:
            for ranks in ("1", "2"):
                result = run(*TRAINING, "--threads", "2", "--ranks", ranks, env=env)
                self.refused(result, 2, "--threads 2: OpenMP gives a rank 1 at most; give --threads 1 or fewer")

    def test_the_threads_that_openmp_gives_are_used_and_recorded(self) -> None:
        for env in self.FEWER:
            run(*self.COMPILED, *self.SHORT, "--db", str(self.db), env=env).ended_with(0)
        self.assertEqual(query("SELECT DISTINCT threads FROM run", self.db), [(1,)])

    def test_openmp_that_would_adapt_its_threads(self) -> None:
        run(*self.COMPILED, *self.SHORT, "--threads", "2", env={"OMP_DYNAMIC": "true"}).ended_with(0)

    def test_a_grant_of_slurm_without_binding_is_kept(self) -> None:
        if len(os.sched_getaffinity(0)) < 2:
            self.skipTest("needs two processors")
        step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_CPUS_PER_TASK": "1"}
        result = run(*self.COMPILED, *self.SHORT, "--db", str(self.db), env=step).ended_with(0)
        self.assertEqual(query("SELECT DISTINCT threads FROM run", self.db), [(1,)])
        self.assertIn("because Slurm granted no more (SLURM_CPUS_PER_TASK)", result.out)

    def test_ranks_that_take_turns_are_a_caution(self) -> None:
        cpu = str(min(os.sched_getaffinity(0)))
        result = execute(["taskset", "-c", cpu, PROGRAM, *TRAINING, "--ranks", "2", "--threads", "1", "--no-db"])
        self.assertIn(f"2 ranks with 1 compute thread each take turns on CPU {cpu}; ", result.ended_with(0).out)
        alone = execute(["taskset", "-c", cpu, PROGRAM, *TRAINING, "--threads", "1", "--no-db"])
        self.assertNotIn("take turns", alone.ended_with(0).out)

    def test_ranks_that_openmp_binds_to_the_same_processor(self) -> None:
        env = {"OMP_PROC_BIND": "true", "OMP_PLACES": f"{{{min(os.sched_getaffinity(0))}}}"}
        result = run(*TRAINING, "--ranks", "2", "--threads", "1", env=env)
        self.assertIn("2 ranks with 1 compute thread each take turns on CPU", result.ended_with(0).out)


class Time(ProgramTest):
    def test_a_sample_that_cannot_end_in_time(self) -> None:
        result = run(*TINY, "--num-batches-per-iter", "100000000", "--max-time", "3")
        self.refused(result, 3, "longer than --max-time 3", "--num-batches-per-iter")

    def test_the_cap_holds_for_the_warm_up_too(self) -> None:
        result = run(*ENDLESS, "--num-warmup-batches", "100000000", "--max-time", "2").ended_with(0)
        self.assertIn("of 100000000 steps, then --max-time was over", result.out)


if __name__ == "__main__":
    assert pathlib.Path(PROGRAM).exists()
    unittest.main(verbosity=2)
