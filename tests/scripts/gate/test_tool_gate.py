"""Gates and compares what other benchmarks print. The commands are stand-ins whose speed is known."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import unittest
from xml.etree import ElementTree

import jsonschema
from limits import HANG

from harness import SCRIPTS, FolderTest, call, eventually, executable, execute, refused
from synthetic_store import REPOSITORY, SessionSpec, make

from hvdb.base import process
from hvdb.base.record import Malformed
from hvdb.read import others

SCHEMA = json.loads((REPOSITORY / "results" / "verdict.schema.json").read_text())
START = "# Collective test starting: all_reduce_perf\n"
HALF = "time algbw busbw #wrong"
HEADING = f"# size count type redop root {HALF} {HALF}\n"

# Prints what a tool prints. Arguments: tool, factor of all times, factor of the largest row, fault. Each run of a side
# draws its noise from a seed of its own, so that a test repeats exactly.
STAND_IN = """#!{python}
    import json, os, random, sys, time
    from pathlib import Path
    tool, slow, slow_large, fault = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    count = Path("count-" + os.environ["SIDE"])
    run = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(run))
    rng = random.Random(os.environ["SIDE"] + " %d" % run)
    rows = [(1024, 20.0), (1 << 20, 400.0)]
    times = [(size, t * slow * (slow_large if size > 1024 else 1) * (1 + 0.005 * rng.gauss(0, 1))) for size, t in rows]
    faulty = fault if run >= int(os.environ.get("FROM", "1")) else ""
    print("a warning \\x1b[31m of the launcher", file=sys.stderr)
    if faulty == "endless":
        while True: sys.stdout.write("#" * 65536 + "\\n")
    if faulty == "hang":
        Path("hangs").touch()
        time.sleep(86400)
    if faulty == "fails":
        sys.exit("NCCL failure \\x1b[2J")
    if faulty == "less":
        times.pop()
    if faulty == "more":
        times.append((1 << 30, 1.0))
    if tool == "osu":
        print("# OSU MPI Allreduce Latency Test v7.4\\n# Size       Avg Latency(us)")
        for size, t in times: print(size, "%.4f" % t)
    elif tool == "nccl-tests":
        print({start!r} + {heading!r}, end="")
        for size, t in times:
            half = "%.4f 1.0 1.5 %s" % (t, 3 if faulty == "wrong" else 0)
            print("  %d %d float sum -1 %s %s" % (size, size // 4, half, half))
    else:
        entries = [{{"name": "BM_%d" % size, "run_type": "iteration", "repetition_index": i, "time_unit": "us",
                     "real_time": t * (1 + i / 1e4), "cpu_time": 0.0}} for size, t in times for i in range(3)]
        if faulty == "error": entries[0].update(error_occurred=True, error_message="wrong sum")
        text = json.dumps({{"context": {{"num_cpus": int(os.environ.get("CPUS", "2"))}}, "benchmarks": entries}})
        print(text[: len(text) // 2] if faulty == "cut" else text)
    sys.exit(int(os.environ.get("CODE", "0")))
"""


class ToolCase(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "pairs.json"
        text = STAND_IN.format(python=sys.executable, start=START, heading=HEADING)
        self.program = executable(self.folder / "bench", textwrap.dedent(text.replace("\n    ", "\n")))

    def side(self, tool: str, name: str, slow: float = 1.0, large: float = 1.0, fault: str = "", **more: str) -> str:
        settings = [f"{key}={value}" for key, value in {"SIDE": name, **more}.items()]
        return shlex.join([*settings, str(self.program), tool, str(slow), str(large), fault])

    def gate(self, tool: str, b: str, *words: object, code: int | None = None) -> subprocess.CompletedProcess[str]:
        command = [SCRIPTS / "gate", "--tool", tool, "--db", self.file, "--a", self.side(tool, "a"), "--b", b, *words]
        return execute(*command, code=code, timeout=HANG, cwd=self.folder)

    def refused(self, tool: str, fault: str, words: str, code: int = 2, **more: str) -> str:
        done = self.gate(tool, self.side(tool, "b", fault=fault, **more))
        self.assertEqual((done.returncode, done.stdout), (code, ""), done.stderr)
        self.assertTrue(done.stderr.replace("\n", "").isprintable(), repr(done.stderr))
        last = done.stderr.splitlines()[-1]
        self.assertRegex(last, words)
        return last


class ToolGateTest(ToolCase):
    def test_equal_commands_are_no_regression(self) -> None:
        for tool, rows in (("osu", 2), ("nccl-tests", 2), ("gbench", 2)):
            with self.subTest(tool):
                self.file.unlink(missing_ok=True)
                done = self.gate(tool, self.side(tool, "b"), "--json", "v.json")
                self.assertIn(done.returncode, (0, 3), done.stdout + done.stderr)
                document = json.loads((self.folder / "v.json").read_text())
                jsonschema.validate(document, SCHEMA)
                self.assertEqual(len(document["cells"]), rows)
                self.assertNotIn("REGRESSION", {cell["verdict"] for cell in document["cells"]})

    def test_a_slower_row_is_a_regression_and_the_same_command_says_so_again(self) -> None:
        b = self.side("osu", "b", large=1.2)
        files = ("--json", "v.json", "--junit", "v.xml", "--markdown", "comment", "--github")
        done = self.gate("osu", b, *files, code=1)
        self.assertRegex(done.stdout, r"cell +A time +B time +slowdown of B")
        self.assertRegex(done.stdout, r"all_reduce float 1048576 +\d+ us +\d+ us +\+(19|20)\.\d+ \[.*REGRESSION\n")
        self.assertRegex(done.stdout, r"all_reduce float 1024 +[12]\d\.\d us .*PASS\n")
        self.assertIn("estimate of the time of an operation", done.stdout)
        self.assertRegex(done.stderr, r"pair 1 of at most 12, cell all rows: B slower by \+\d.* of 2 rows, ")
        self.assertRegex(done.stdout, r"(?m)^::error title=gate%3A REGRESSION|^::error title=gate: REGRESSION: all_red")
        document = json.loads((self.folder / "v.json").read_text())
        jsonschema.validate(document, SCHEMA)
        large = next(cell for cell in document["cells"] if cell["cell"].endswith("1048576"))
        self.assertEqual((document["exit_code"], large["unit"], large["runs"]), (1, "operations", {"a": [], "b": []}))
        self.assertAlmostEqual(large["images_per_second"]["a"], 2500, delta=50)
        runs = (self.folder / "count-a").read_text()
        again = self.gate("osu", b, code=1)
        self.assertEqual((self.folder / "count-a").read_text(), runs, "what was measured is not measured again")
        self.assertIn(again.stdout.split("\n\n")[0], done.stdout)
        other = self.gate("osu", b, "--threshold", "30", code=2)
        self.assertIn("was measured for another plan", other.stderr)
        recorded = call("compare", self.file, code=1)[1]
        self.assertEqual(recorded, again.stdout.replace("gate: REGRESSION", "compare: REGRESSION"))
        refused("pairs.json: holds both sides of a gate; give it alone", "compare", self.file, self.file, code=4)

    def test_compare_refuses_pairs_that_no_gate_wrote(self) -> None:
        self.gate("osu", self.side("osu", "b", 1.2), code=1)
        good = json.loads(self.file.read_text())
        few = {**good, "costs": {name: pairs[:2] for name, pairs in good["costs"].items()}, "failed": [{}, {}]}
        cases = [(few, "has 2 whole pairs; the first verdict needs 8: give the gate's command again")]
        for key, value in (("pairs", 10**9), ("thresholds", -1.0), ("rows", 3)):
            plan = {**good, "plan": {**good["plan"], key: value}}
            cases.append((plan, f"does not hold the pairs of a gate with --tool: plan.{key}: "))
        for changed, message in cases:
            self.file.write_text(json.dumps(changed))
            refused(message, "compare", self.file)

    def test_rows_are_chosen_by_name_or_pattern(self) -> None:
        b = self.side("nccl-tests", "b", large=1.2)
        done = self.gate("nccl-tests", b, "--row", "all_reduce float 1024", code=0)
        self.assertIn("gate: PASS (1 PASS)", done.stdout)
        self.file.unlink()
        done = self.gate("nccl-tests", b, "--row", "*1048576*", code=1)
        self.assertIn("gate: REGRESSION (1 REGRESSION)", done.stdout, "out of place alone")
        self.file.unlink()
        done = self.gate("nccl-tests", b, "--row", "*1048576", "--row", "*1048576 in place", code=1)
        self.assertIn("gate: REGRESSION (2 REGRESSION)", done.stdout, "both places are asked for")
        self.file.unlink()
        done = self.gate("nccl-tests", b, "--row", "all_gather *", code=2)
        self.assertIn("--row 'all_gather *': there is no such row; there are 'all_reduce float 1024', ", done.stderr)
        self.assertFalse(self.file.exists(), "nothing was measured, so another --row needs no other --db")

    def test_a_row_that_one_side_lacks_is_no_pass(self) -> None:
        done = self.gate("osu", self.side("osu", "b", fault="more"), "--json", "v.json", code=3)
        self.assertIn("all_reduce float 1073741824: side A has no such row", done.stdout)
        pardoned = ("--json", "v.json", "--fail-on", "regression")
        self.gate("osu", self.side("osu", "b", fault="more"), *pardoned, code=3)
        self.assertEqual(len(json.loads((self.folder / "v.json").read_text())["missing"]), 1)

    def test_a_side_that_fails_voids_its_pair(self) -> None:
        done = self.gate("osu", self.side("osu", "b", 1.2, fault="fails", FROM="12"), code=1)
        self.assertNotIn("failed", done.stdout, "all rows had their verdict before")
        self.file.unlink()
        (self.folder / "count-b").unlink()
        done = self.gate("osu", self.side("osu", "b", fault="fails", FROM="12"), "--threshold", "0.1", code=2)
        self.assertIn(
            r"void: side b ended with exit code 1, and said: NCCL failure \x1b[2J, and printed no", done.stderr
        )
        self.assertRegex(done.stdout, "only side b failed in 1 and only side a in 0 of 12 pairs")
        self.assertEqual([len(pairs) for pairs in json.loads(self.file.read_text())["costs"].values()], [12, 12])
        self.assertEqual(call("compare", self.file, code=2)[1].split("\n\n")[0], done.stdout.split("\n\n")[0])

    def test_a_b_that_fails_where_a_does_not_is_a_regression(self) -> None:
        for tool, fault, why in (
            ("osu", "fails", "ended with exit code 1, and said: NCCL failure"),
            ("nccl-tests", "wrong", "printed no result to judge: .*wrong elements"),
            ("gbench", "error", "BM_1024.* ended with an error"),
            ("gbench", "cut", "printed no result to judge: "),
        ):
            with self.subTest(fault):
                self.file.unlink(missing_ok=True)
                done = self.gate(tool, self.side(tool, "b", fault=fault), code=1)
                self.assertRegex(done.stdout, f"B fails where A does not; the newest: side b of pair [78] .*{why}")
                self.assertIn("gate: REGRESSION (1 REGRESSION)", done.stdout)
                self.assertTrue(done.stdout.replace("\n", "").isprintable())

    def test_a_row_that_gets_lost_is_a_failure(self) -> None:
        done = self.gate("osu", self.side("osu", "b", fault="less", FROM="2"), code=1)
        self.assertIn("printed no row 'all_reduce float 1048576', which the first pair has", done.stdout)

    def test_wrong_results_are_named_where_the_program_says_it_failed(self) -> None:
        done = self.gate("nccl-tests", self.side("nccl-tests", "b", fault="wrong", CODE="3"), code=1)
        self.assertRegex(done.stdout, "side b of pair [78] ended with exit code 3, .* and printed no .*wrong elements")

    def test_another_program_or_machine_is_not_compared(self) -> None:
        done = self.gate("gbench", self.side("osu", "b"))
        self.assertRegex(done.stdout + done.stderr, "OSU micro-benchmarks")
        self.file.unlink()
        self.refused("gbench", "", r"side b of pair 1 says \{'num_cpus': '3'\}, and", 4, CPUS="3")

    def test_a_program_that_is_not_there_is_no_regression(self) -> None:
        b = shlex.join(["env", "SIDE=b", "no-such-program"])
        done = self.gate("osu", b, code=2)
        self.assertRegex(done.stderr.splitlines()[-1], "side b of pair 1 ended with exit code 127")

    def test_output_and_time_are_bounded(self) -> None:
        words = ("--time-limit", "0.1")
        done = self.gate("osu", self.side("osu", "b", fault="endless"), *words)
        self.assertIn("side b printed more than 64 MiB and was ended", done.stderr)
        self.file.unlink(missing_ok=True)
        done = self.gate("osu", self.side("osu", "b", fault="hang"), "--timeout", "1", *words)
        self.assertIn("side b took longer than 1 s and was ended", done.stderr)
        self.assertNotEqual(done.returncode, 0)

    def test_an_interrupt_leaves_nothing_running(self) -> None:
        words = ["--tool", "osu", "--db", self.file, "--a", self.side("osu", "a"), "--b"]
        words = [SCRIPTS / "gate", *words, self.side("osu", "b", fault="hang", FROM="2")]
        begun = subprocess.Popen(list(map(str, words)), cwd=self.folder, stderr=subprocess.PIPE, text=True)
        eventually((self.folder / "hangs").exists)
        begun.send_signal(signal.SIGTERM)
        _, said = begun.communicate(timeout=HANG)
        self.assertEqual(begun.returncode, 7, said)
        self.assertEqual(json.loads(self.file.read_text())["failed"], [{}], "an interrupt is no failure")

    def test_equal_sides_and_a_library_that_is_not_there(self) -> None:
        done = self.gate("osu", self.side("osu", "a"), "--threshold", "90")
        self.assertIn("A and B are equal: what this shows is noise", done.stdout)
        self.file.unlink()
        done = self.gate("osu", f"LD_PRELOAD=/no/lib.so {self.side('osu', 'b')}", code=2)
        self.assertIn("--b: LD_PRELOAD names /no/lib.so, and there is no such file", done.stderr)

    def test_a_plan_that_cannot_decide_is_refused(self) -> None:
        rows = ("--row", "*", "--row", "* in place")
        done = self.gate("nccl-tests", self.side("nccl-tests", "b"), *rows, "--pairs", "6", code=2)
        self.assertIn("6 pairs can never lead to a verdict on 4 cells", done.stderr)
        self.assertIn("or choose rows with --row", done.stderr)
        done = self.gate("osu", self.side("osu", "b"), "--pairs", "5", code=2)
        self.assertIn("5 pairs can never lead to a verdict on 1 cell", done.stderr)

    def test_bad_input(self) -> None:
        b = self.side("osu", "b")
        for words, message in (
            (("--cell", "x=--seed 1"), "--cell: is for runs of hvd_bench; with --tool the commands"),
            (("--launch", "mpirun"), "--launch: is for runs of hvd_bench"),
            (("--seconds", "9"), "--seconds: is for runs of hvd_bench"),
            (("--thresholds", "t.toml"), "--thresholds: its rules are for networks"),
            (("--a", ""), "--a '': names no program"),
            (("--a", "X=1"), "--a 'X=1': names no program"),
            (("--a", "no-such-program -x"), "there is no program 'no-such-program' on the PATH"),
            (("--a", "'"), "no closing quotation"),
            (("--tool", "fio"), "invalid choice: 'fio'"),
            (("--metric", "x=([0-9]+)"), "--metric: is for --tool command"),
            (("--tool", "command"), "say what to read from its output: --metric"),
            (("--json", "pairs.json"), "is named twice"),
        ):
            with self.subTest(words):
                done = self.gate("osu", b, *words)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(message, done.stderr)
        done = execute(SCRIPTS / "gate", "--b", "x=1", "--db", "x.db", "--row", "x", cwd=self.folder, code=2)
        self.assertIn("--row, --metric: are for other programs", done.stderr)

    def test_a_file_that_holds_anything_else_is_refused(self) -> None:
        self.gate("osu", self.side("osu", "b", 1.2), code=1)
        good = json.loads(self.file.read_text())
        for change in (
            {"costs": {"x": [[1.0, math.nan]]}},
            {"costs": {"x": [[1.0, "x"]]}},
            {"costs": {"x": [[1.0]] * len(good["failed"])}},
            {"costs": {"x": [[1.0, 0.0]] * len(good["failed"])}},
            {"costs": {"x": [[1.0, 1.0]]}},
            {"costs": {}},
            {"costs": 3},
            {"failed": {"a": 1}},
            {"failed": [{"c": "x"}] * len(good["failed"])},
            {"format": "hvdb-pairs 3"},
            {"missing": 1},
            {"more": 1},
        ):
            with self.subTest(change):
                self.file.write_text(json.dumps({**good, **change}))
                done = self.gate("osu", self.side("osu", "b", 1.2), code=2)
                self.assertIn("does not hold the pairs of a gate with --tool", done.stderr)
        for content in (b"\xff", b"", b"[" * 100_000, b"{"):
            self.file.write_bytes(content)
            self.gate("osu", self.side("osu", "b", 1.2), code=2)
            refused("does not hold the pairs of a gate with --tool", "compare", self.file)

    def test_pairs_of_gates_before_are_judged_as_they_were(self) -> None:
        for name, code in (("same", 3), ("tcache", 1)):
            kept = REPOSITORY / "results" / "recorded" / "2026-11-26-tool-gate"
            out = call("compare", kept / f"{name}.json", code=code)[1]
            recorded = (kept / f"{name}.txt").read_text()
            for row in re.findall(r"(?m)^BM_.*$|^\w+/?\d* .*(?:PASS|REGRESSION|INCONCLUSIVE)$", out):
                self.assertIn(row, recorded)
            self.assertRegex(out, r"(REGRESSION|INCONCLUSIVE)\n")

    def test_a_dry_run_runs_nothing(self) -> None:
        done = self.gate("osu", self.side("osu", "b"), "--dry-run", code=0)
        self.assertRegex(done.stderr, "at most 12 pairs, 24 runs, into .*pairs.json")
        self.assertEqual([*self.folder.glob("count-*")], [])

    def test_no_shell_reads_the_command(self) -> None:
        done = self.gate("osu", f"{self.side('osu', 'b')} ';' 'touch bad' $(touch bad)", code=None)
        self.assertIn(done.returncode, (0, 3), done.stderr)
        self.assertFalse((self.folder / "bad").exists())


def samples(name: str, seed: int, slow: float, count: int) -> list[dict]:
    rng = random.Random(seed)
    return [
        {"name": name, "run_type": "iteration", "repetition_index": i, "time_unit": "ns", "real_time": time}
        for i, time in enumerate(1e3 * slow * (1 + 0.005 * rng.gauss(0, 1)) for _ in range(count))
    ]


def document(*entries: dict, **context: object) -> dict:
    return {"context": {"num_cpus": 2, "library_build_type": "release", **context}, "benchmarks": list(entries)}


class CompareOthersTest(FolderTest):
    def compare(self, a: object, b: object, *words: object, code: int) -> tuple[str, str]:
        files = [self.folder / name for name in ("a.out", "b.out")]
        for file, content in zip(files, (a, b), strict=True):
            file.write_text(content if isinstance(content, str) else json.dumps(content))
        _, out, err = call("compare", *files, *words, code=code)
        self.assertTrue((out + err).replace("\n", "").isprintable())
        return out, err

    def test_repetitions_of_google_benchmark(self) -> None:
        a = document(*samples("BM_x/8", 1, 1.0, 20), *samples("BM_y", 2, 1.0, 60))
        b = document(*samples("BM_x/8", 3, 1.2, 20), *samples("BM_y", 4, 1.0, 60))
        verdicts = self.folder / "v.json"
        out, _ = self.compare(a, b, "--json", verdicts, code=1)
        self.assertRegex(out, r"BM_x/8 +1\.0\d us +1\.2\d us .* 20 \+ 20 +REGRESSION")
        self.assertRegex(out, r"BM_y .* 50 \+ 50 +PASS")
        self.assertIn("not what changes from one process to the next", out)
        self.assertIn("A and B were not measured in turn", out)
        self.assertNotIn("which term moved", out)
        jsonschema.validate(json.loads(verdicts.read_text()), SCHEMA)
        out, _ = self.compare(a, b, "--row", "BM_y", code=0)
        self.assertNotIn("BM_x", out)

    def test_hostile_names_are_shown_as_text(self) -> None:
        name = "\x1b[2J</summary><script>|\ud800\n::error::"
        files = [self.folder / file for file in ("comment", "v.xml", "v.json")]
        words = [word for pair in zip(("--markdown", "--junit", "--json"), files, strict=True) for word in pair]
        a, b = (document(*samples(name, seed, 1.0, 5)) for seed in (1, 2))
        out, _ = self.compare(a, b, "--threshold", "50", "--github", *words, code=0)
        self.assertIn(r"\x1b[2J</summary><script>|\ud800\n::error::", out)
        self.assertNotIn("<script>", files[0].read_text())
        self.assertTrue(ElementTree.parse(files[1]).getroot().find("testcase").get("name").startswith(r"\x1b[2J"))
        self.assertEqual(json.loads(files[2].read_text())["cells"][0]["cell"], name)

    def test_one_mean_is_inconclusive_and_says_why(self) -> None:
        means = [document(*samples("BM_x", 1, slow, 1)) for slow in (1.0, 2.0)]
        tables = [f"# OSU MPI Bcast Latency Test v7.4\n# Size Avg Latency(us)\n4 {time}\n" for time in (3.0, 6.0)]
        nccl = [f"{START}{HEADING} 1024 256 float sum -1 {t} 1 1 0 {t} 1 1 N/A\n" for t in (20.0, 40.0)]
        many = document(*samples("BM_x", 1, 1.0, 30))
        for a, b in (means, tables, nccl, (many, means[1]), (means[1], many)):
            out, _ = self.compare(a, b, code=3)
            self.assertRegex(out, r" 1 \+ 1 +INCONCLUSIVE")
            self.assertIn("a side has one mean and no samples, so nothing says how it varies", out)

    def test_json_of_nccl_tests_has_samples(self) -> None:
        def of(slow: float, seed: int) -> dict:
            rng = random.Random(seed)
            each = [20.0 * slow * (1 + 0.01 * rng.gauss(0, 1)) for _ in range(20)]
            row = {"size": 1024, "type": "float", "redop": "sum", "experiment_name": "AllReduce"}
            row |= {"out_of_place": {"time": 20.0 * slow, "nwrong": 0}, "out_of_place_per_iter": {"times_us": each}}
            config = {"nthreads": 1, "ngpus": 1, "devices": [{"hostname": "a"}, {"hostname": "b"}]}
            return {"config": config, "results": [row]}

        out, _ = self.compare(of(1.0, 1), of(1.2, 2), code=1)
        self.assertRegex(out, r"all_reduce float 1024 +\d+\.\d us .* 20 \+ 20 +REGRESSION")
        four = of(1.0, 3)
        four["config"]["ngpus"] = 2
        _, err = self.compare(of(1.0, 1), four, code=4)
        self.assertRegex(err, "nccl-tests: A and B differ in .*: ranks: '2' in A, '4' in B; .*--expect ranks")
        out, _ = self.compare(of(1.0, 1), four, "--expect", "ranks", "--threshold", "50", code=0)
        self.assertIn("differs (can change the result): ranks: '2' in A, '4' in B", out)

    def test_bad_input(self) -> None:
        good = samples("BM_x", 1, 1.0, 3)

        def one(**changes: object) -> dict:
            return document({**good[0], **changes})

        for words, a in (
            ("'BM_x': it ended with an error", one(error_occurred=True)),
            (r"'BM_x': time_unit: 'h' is not one of ns, us, ms, s", one(time_unit="h")),
            ("'BM_x': real_time: 0 is not a number above 0", one(real_time=0)),
            ("'BM_x': real_time: nan is not a number above 0", one(real_time=math.nan)),
            ("'BM_x': real_time is not from 1e-15 s", one(real_time=1e-320)),
            (r"'\\x1b\[2J': it ended with an error", one(name="\x1b[2J", error_occurred=True)),
            ("no row with a time", one(run_type="aggregate")),
            (r"benchmarks\[1\]: 1 is not a table", document(1)),  # type: ignore[arg-type]
            ("benchmarks: .* is not a list of at most 100000", {"context": {}, "benchmarks": [{}] * 100_001}),
            ("benchmarks: {} is not a list of at most", {"context": {}, "benchmarks": {}}),
            ("no whole JSON", json.dumps(document(*good))[:-4]),
            ("neither JSON nor a table", "\x1b[31mhello"),
            ("neither JSON nor a table", ""),
        ):
            with self.subTest(words):
                _, err = self.compare(a, document(*good), code=2)
                self.assertEqual(len(err.splitlines()), 1)
                self.assertRegex(err, f"(a.out: no store, and not a result of .*|A: row ){words}")

    def test_what_cannot_be_compared(self) -> None:
        a = document(*samples("BM_x", 1, 1.0, 5))
        _, err = self.compare(a, "# OSU MPI Bcast Latency Test v7.4\n4 1.0\n", code=4)
        self.assertIn("A is a result of Google Benchmark, and B of OSU micro-benchmarks", err)
        _, err = self.compare(a, document(*samples("BM_z", 1, 1.0, 5)), code=4)
        self.assertIn("A and B have no row in common; A has 'BM_x', B has 'BM_z'", err)
        _, err = self.compare(a, document(*samples("BM_x", 1, 1.0, 5), library_build_type="debug"), code=4)
        self.assertIn("library_build_type: 'release' in A, 'debug' in B", err)
        many = document(*(entry for i in range(201) for entry in samples(f"BM_{i}", i, 1.0, 1)))
        _, err = self.compare(many, many, code=2)
        self.assertIn("201 rows, and at most 200 can be judged: choose some with --row", err)
        self.compare(many, many, "--row", "BM_7", code=3)

    def test_a_store_beside_a_file_and_two_stores_keep_their_words(self) -> None:
        store, other = self.db, self.folder / "other.json"
        make(store, SessionSpec())
        other.write_text(json.dumps(document(*samples("BM_x", 1, 1.0, 5))))
        _, _, err = call("compare", store, other, code=2)
        self.assertIn("other.json", err)
        _, _, err = call("compare", store, store, "--row", "x", code=2)
        self.assertIn("--row, --metric: are for two files of another program", err)
        _, _, err = call("compare", self.folder / "missing", other, code=2)
        self.assertIn("missing", err)


class ReaderTest(unittest.TestCase):
    def test_aggregates_and_skipped_benchmarks_are_left_out(self) -> None:
        mean = {"name": "BM_x_mean", "run_type": "aggregate", "real_time": "NaN"}
        skipped = {"name": "BM_y", "run_type": "iteration", "skipped": True, "skip_message": "no such device"}
        text = json.dumps(document(*samples("BM_x", 1, 1.0, 4), mean, skipped)).replace('"NaN"', "NaN")
        results = others.parse(text.encode())
        self.assertEqual({name: len(times) for name, times in results.costs.items()}, {"BM_x": 4})
        self.assertEqual(results.facts, {"num_cpus": "2", "library_build_type": "release"})

    def test_every_unit_is_seconds(self) -> None:
        for unit, scale in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
            entry = {**samples("BM_x", 1, 1.0, 1)[0], "time_unit": unit, "real_time": 5}
            (seconds,) = others.parse(json.dumps(document(entry)).encode()).costs["BM_x"]
            self.assertAlmostEqual(seconds / scale, 5)

    def test_too_much_is_refused(self) -> None:
        with self.assertRaisesRegex(Malformed, "more than 64 MiB"):
            others.parse(b" " * ((64 << 20) + 1))

    def test_operations_that_hvd_bench_does_not_have(self) -> None:
        for test, operation in (("reduce", "reduce"), ("sendrecv", "sendrecv"), ("gather", "gather")):
            redop = "sum" if operation == "reduce" else "none"
            head = START.replace("all_reduce", test)
            text = f"{head}{HEADING} 1024 256 float {redop} -1 20.0 1 1 0 20.0 1 1 N/A\n"
            self.assertEqual(
                [*others.parse(text.encode()).costs], [f"{operation} float 1024", f"{operation} float 1024 in place"]
            )


class ProcessTest(FolderTest):
    def test_errors_go_to_a_file_of_their_own(self) -> None:
        files = [self.folder / name for name in ("out", "err")]
        with files[0].open("wb") as out, files[1].open("wb") as err:
            process.run(["sh", "-c", "echo a; echo b >&2"], dict(os.environ), HANG, None, out, (), err, 100)
        self.assertEqual([file.read_text() for file in files], ["a\n", "b\n"])


if __name__ == "__main__":
    unittest.main()
