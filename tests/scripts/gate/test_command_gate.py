"""Gates and compares any command by what its output says (gate --tool command --metric)."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import textwrap

import jsonschema
from limits import HANG

from harness import SCRIPTS, FolderTest, call, executable, execute
from synthetic_store import REPOSITORY

SCHEMA = json.loads((REPOSITORY / "results" / "verdict.schema.json").read_text())
LATENCY = r"latency=Latency: ([0-9.]+)"
RATE = r"rate=Rate ([0-9.]+)"

# Prints "Latency: X us" thrice and "Rate Y GB/s". Arguments: side, factor, fault. Each run has noise of its own.
STAND_IN = """#!{python}
    import json, random, sys, time
    from pathlib import Path
    side, slow, fault = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    count = Path("count-" + side)
    run = int(count.read_text()) + 1 if count.exists() else 1
    count.write_text(str(run))
    rng = random.Random(side + " %d" % run)
    unit = "ms" if fault == "ms" or (fault == "later" and run > 2) else "us"
    if fault == "nothing": sys.exit(0)
    if fault == "text": print("Latency: none")
    if fault == "zero": print("Latency: 0 us")
    if fault == "million": print("Latency: 1 us\\n" * 1_000_001)
    for _ in range(3):
        print("host \\x1b[31m Latency: %.4f %s" % (20 * slow * (1 + 0.004 * rng.gauss(0, 1)), unit))
    print("Rate %.4f GB/s" % (10 / slow * (1 + 0.004 * rng.gauss(0, 1))))
    print("result " + "a" * 40 + "!")
    print(json.dumps({{"results": [{{"time": 3.0 * slow * (1 + 0.004 * rng.gauss(0, 1))}}]}}))
"""


class CommandGateTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "pairs.json"
        self.program = executable(
            self.folder / "bench", textwrap.dedent(STAND_IN.format(python=sys.executable).replace("\n    ", "\n"))
        )

    def side(self, name: str, slow: float = 1.0, fault: str = "") -> str:
        return shlex.join([str(self.program), name, str(slow), fault])

    def gate(self, b: str, *words: object, a: str = "", code: int | None = None) -> subprocess.CompletedProcess[str]:
        command = [SCRIPTS / "gate", "--tool", "command", "--db", self.file, "--a", a or self.side("a"), "--b", b]
        return execute(*command, *words, code=code, timeout=HANG, cwd=self.folder)

    def test_metrics_of_which_less_and_more_are_better(self) -> None:
        words = ("--metric", LATENCY, "--metric", RATE, "--higher-is-better", "rate", "--metric", "t=$.results[0].time")
        done = self.gate(self.side("b", 1.1), *words, "--json", "v.json", code=1)
        self.assertRegex(done.stdout, r"cell +A +B +slowdown of B")
        self.assertRegex(done.stdout, r"latency +(19|20)\.\d us +(21|22)\.\d us +\+(9|10)\..*REGRESSION")
        self.assertRegex(done.stdout, r"rate +(9|10)\.\d+ GB/s +(8|9)\.\d+ GB/s +\+(9|10)\..*REGRESSION")
        self.assertRegex(done.stdout, r"\nt +[23]\.\d+ +3\.\d+ +\+.*REGRESSION")
        self.assertIn("its reciprocal where more is better", done.stdout)
        document = json.loads((self.folder / "v.json").read_text())
        jsonschema.validate(document, SCHEMA)
        rate = next(cell for cell in document["cells"] if cell["cell"] == "rate")
        self.assertEqual((rate["metric"]["unit"], rate["metric"]["more_is_better"]), ("GB/s", True))
        self.assertAlmostEqual(rate["metric"]["a"], 10, delta=0.1)
        again = call("compare", self.file, code=1)[1]
        self.assertEqual(again.split("\n\n")[0], done.stdout.split("\n\n")[0])
        self.assertIn("another plan", self.gate(self.side("b", 1.1), "--metric", LATENCY, code=2).stderr)

    def test_equal_commands_pass(self) -> None:
        done = self.gate(self.side("b"), "--metric", LATENCY, "--threshold", "3", code=0)
        self.assertIn("gate: PASS (1 PASS)", done.stdout)

    def test_a_metric_that_does_not_fit_the_output_ends_the_first_pair(self) -> None:
        for metric, fault, message in (
            (
                "x=Speed: ([0-9]+)",
                "",
                r"row 'x': matched nothing in \d+ lines; the output begins: 'host \\x1b\[31m Lat",
            ),
            (LATENCY, "nothing", "row 'latency': matched nothing in 0 lines; the output is empty"),
            (r"x=Latency: (\S+)", "text", "row 'x': 'none' is not a number"),
            (LATENCY, "zero", "row 'latency': 0 is not a number from"),
            (LATENCY, "million", "row 'latency': matched more than 100000 times"),
            ("x=result (a+)+$", "", "row 'x': the regular expression took more than 10 s"),
            ("x=$.results[0].speed", "", r"row 'x': \$.results\[0\].speed is not there"),
        ):
            with self.subTest(message):
                done = self.gate(self.side("b"), "--metric", metric, a=self.side("a", fault=fault), code=2)
                last = done.stderr.splitlines()[-1]
                self.assertRegex(last, f"side a of pair 1 of cell all rows printed no result to judge: .*{message}")
                self.assertTrue(last.isprintable())
                self.assertFalse(self.file.exists())

    def test_units_that_change_between_the_sides(self) -> None:
        done = self.gate(self.side("b", fault="ms"), "--metric", LATENCY, code=4)
        self.assertRegex(done.stderr.splitlines()[-1], "row latency: A is in us, B in ms")

    def test_units_that_change_later_and_numbers_that_are_cut(self) -> None:
        done = self.gate(self.side("b", fault="later"), "--metric", LATENCY, code=4)
        self.assertRegex(
            done.stderr.splitlines()[-1], "side b of pair 3 prints latency in ms, and the first run of A in us"
        )
        self.file.unlink()
        for said in ("Latency: 9.5e-05 s", "Latency: 1,234.5 us"):
            done = self.gate(self.side("b"), "--metric", LATENCY, a=f"echo '{said}'", code=2)
            self.assertIn("ends within a number", done.stderr)

    def test_bad_options(self) -> None:
        for words, message in (
            ((), "--tool command: say what to read from its output: --metric"),
            (("--metric", "x"), "write NAME=PATTERN"),
            (("--metric", "x=([0-9]"), "not a regular expression"),
            (("--metric", "x=[0-9]"), "has 0 groups"),
            (("--metric", "x=$.a["), "a path has the form"),
            (("--metric", "x=(1)", "--metric", "x=(2)"), "two metrics are named x"),
            (("--metric", "x=(1)", "--higher-is-better", "y"), "--higher-is-better y: no --metric is named so"),
        ):
            with self.subTest(words):
                done = self.gate(self.side("b"), *words, code=2)
                self.assertIn(message, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)

    def test_compare_two_files(self) -> None:
        for name, slow in (("a", 1.0), ("b", 1.5)):
            lines = [f"Latency: {20 * slow + 0.01 * n:.2f} us" for n in range(8)]
            (self.folder / name).write_text("\n".join(lines))
        files = (self.folder / "a", self.folder / "b")
        out = call("compare", *files, "--metric", LATENCY, code=1)[1]
        self.assertRegex(out, r"latency +20\.0 us +30\.0 us +\+(49|50)\.\d+ .* 8 \+ 8 +REGRESSION")
        self.assertIn("come from one process", out)
        self.assertIn("not a result of", call("compare", *files, code=2)[2])
