"""Runs hvdb history as a user does, on stores whose sessions have known speeds."""

from __future__ import annotations

import datetime
import json
import os
import unittest
from unittest import mock

import jsonschema
import numpy as np
import tomllib
from PIL import Image

from harness import FolderTest, call, refused
from synthetic_store import REPOSITORY, SessionSpec, make

from hvdb.base.errors import HvdbError
from hvdb.judge import change_points, expected, thresholds
from hvdb.judge.expected import Expected
from hvdb.read import runs
from hvdb.show import figure, plot_history

SCHEMA = json.loads((REPOSITORY / "results" / "history.schema.json").read_text())
CPU = {"cpu.model": ("Test CPU", 1), "lib.onednn": ("3.5", 1), "git.commit": ("abc", 0)}
NEEDS_RUPTURES = unittest.skipUnless(change_points.available(), "needs ruptures (scripts/install_deps --tests)")


def nights(count: int, begin: int = 0, slow: float = 1.0, seed: int = 1, **spec: object) -> list[SessionSpec]:
    """Returns sessions of `count` nights, from night `begin` on. Steps take 1.25 s * `slow`, with 0.2 % of noise."""
    rng = np.random.default_rng([seed, begin])
    day = datetime.datetime(2026, 1, 1, 3)
    return [
        SessionSpec(
            noise=0.0001,
            steps=5,
            full=1.25 * slow * (1 + 0.002 * float(rng.uniform(-1, 1))),
            started=(day + datetime.timedelta(days=begin + night)).isoformat() + ".000Z",
            **{"provenance": CPU, **spec},
        )
        for night in range(count)
    ]


class HistoryCase(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.db = self.folder / "nightly.db"
        self.file = self.folder / "expected.toml"

    def history(self, *words: object, code: int) -> str:
        """Runs hvdb history. Returns its output on both streams."""
        _, out, err = call("history", *words, code=code)
        return out + err

    def document(self, *words: object, code: int) -> dict:
        """Runs hvdb history. Returns its JSON document, which must fit its JSON schema and contain exit code `code`."""
        file = self.folder / "history.json"
        self.history(*words, "--json", file, code=code)
        document = json.loads(file.read_text())
        jsonschema.validate(document, SCHEMA)
        self.assertEqual(document["exit_code"], code)
        return document

    def refused(self, message: str, *words: object) -> None:
        refused(message, "history", *words)


class VerdictTest(HistoryCase):
    def test_an_ordinary_night_passes(self) -> None:
        make(self.db, *nights(20))
        said = self.history(self.db, code=0)
        self.assertRegex(said, r"resnet101, batch 8, .*  2026-01-01T03:00:00 +19 .* 2  PASS\n")
        self.assertIn("history: PASS (1 PASS)", said)

    def test_a_slower_night_is_a_regression(self) -> None:
        make(self.db, *nights(19), *nights(1, 19, slow=1.05))
        document = self.document(self.db, code=1)
        (series,) = document["series"]
        known = series["judgement"]
        self.assertEqual((known["verdict"], known["earlier"], known["p_worse"]), ("REGRESSION", 19, 0.05))
        self.assertAlmostEqual(known["slowdown"], 0.05, delta=0.005)
        low, high = known["prediction_interval"]
        self.assertTrue(known["newest"] < low < known["median"] < high)
        self.assertAlmostEqual(known["median"], 16 / 1.25, delta=0.1, msg="images/s of two ranks, batch 8")
        self.assertEqual(
            self.document(self.db, "--threshold", "10", code=0)["series"][0]["judgement"]["verdict"], "PASS"
        )

    def test_a_faster_night_passes_and_may_be_accepted(self) -> None:
        make(self.db, *nights(19), *nights(1, 19, slow=0.95))
        self.assertIn(
            "faster than its prediction interval; if that is to stay, --accept", self.history(self.db, code=0)
        )

    def test_too_few_nights_are_inconclusive_and_say_how_many_are_missing(self) -> None:
        make(self.db, *nights(5))
        self.assertIn("INCONCLUSIVE: 4 earlier sessions, and a verdict needs 15 more", self.history(self.db, code=3))
        self.db.unlink()
        make(self.db, *nights(1))
        self.assertIn("0 earlier sessions, and a verdict needs 19 more", self.history(self.db, code=3))

    def test_one_night_by_its_id_or_its_store(self) -> None:
        made = make(self.db, *nights(19), *nights(1, 19, slow=1.05), *nights(1, 20))
        self.assertRegex(self.history(self.db, "--new", made[19]["full"], code=1), r"19 .*REGRESSION\n")
        new = self.folder / "new.db"
        make(new, *nights(1, 21, slow=1.1), seed=2)
        self.assertRegex(self.history(self.db, "--new", new, code=1), r" 21 .*REGRESSION\n")
        self.history(self.db, new, "--new", new, code=1)
        make(self.folder / "two.db", *nights(2, 21), seed=3)
        self.refused("2 new sessions of resnet101.*compare", self.db, "--new", self.folder / "two.db")

    def test_the_efficiency_has_a_threshold_of_its_own(self) -> None:
        make(self.db, *nights(19), *nights(1, 19, slow=1.03), *nights(20, phases=("full",), ranks=4))
        rules = self.folder / "thresholds.toml"
        rules.write_text(
            '[[threshold]]\nmetric = "efficiency"\npercent = 1\nreason = "the network"\n[[threshold]]\npercent = 9\n'
        )
        words = (self.db, "--thresholds", rules)
        self.history(*words, "--ranks", 2, code=0)
        said = self.history(*words, "--metric", "efficiency", code=1)
        self.assertIn("left out: 20 sessions without a stored efficiency", said)
        self.assertRegex(said, r" [78]\d\.\d+ +77\.\d+ .* 1  REGRESSION\n")
        self.assertIn("threshold: the network", said)
        self.assertEqual([rule.slowdown for rule in thresholds.read(rules)], [0.09], "gate and compare judge the cost")
        rules.write_text('[[threshold]]\npercent = 9\nmetric = "speed"\n')
        self.refused(r"threshold\[1\].metric: 'speed' is not one of cost, efficiency", *words)

    def test_several_series_are_judged_together(self) -> None:
        slow = [*nights(19), *nights(1, 19, slow=1.05)]
        make(self.db, *slow, *nights(20, model="vgg16"))
        self.assertRegex(self.history(self.db, "--model", "resnet101", code=1), r"\(1 REGRESSION\)")
        said = self.history(self.db, code=1)
        self.assertIn("vgg16", said)
        self.assertIn("19 earlier sessions, and a verdict needs 20 more", said)


class SeriesTest(HistoryCase):
    def test_another_library_opens_another_series(self) -> None:
        newer = {**CPU, "lib.onednn": ("3.6", 1)}
        make(self.db, *nights(20), *nights(3, 20, slow=1.2, provenance=newer, fingerprint="bb"))
        said = self.history(self.db, code=3)
        self.assertIn("a new series: lib.onednn: '3.5' -> '3.6'", said)
        self.assertRegex(said, r"2026-01-01T03:00:00 .* closed\n")
        self.assertRegex(said, r"2026-01-21T03:00:00 +2 .* INCONCLUSIVE\n")
        document = self.document(self.db, code=3)
        self.assertEqual([series["closed"] for series in document["series"]], [True, False])
        self.assertIsNone(document["series"][0]["judgement"])
        self.assertEqual(document["series"][1]["opened"][0]["key"], "lib.onednn")

    def test_two_machines_have_a_series_each(self) -> None:
        other = {**CPU, "cpu.model": ("Other", 1)}
        specs = [*nights(40), *nights(40, slow=2, provenance=other, fingerprint="bb")]
        make(self.db, *sorted(specs, key=lambda spec: spec.started))
        self.assertIn("history: PASS (2 PASS)", self.history(self.db, code=0))

    def test_what_is_no_measured_session_is_left_out_and_said(self) -> None:
        gate = {**CPU, "label.gate.cell": ("one", 0)}
        make(
            self.db,
            *nights(20),
            *nights(1, 20, slow=3, origin="simulated"),
            *nights(1, 21, slow=3, traced=1),
            *nights(1, 22, slow=3, status="incomplete"),
            *nights(1, 23, slow=3, provenance=gate),
        )
        said = self.history(self.db, code=0)
        for line in ("3 simulated", "3 traced or profiled", "3 incomplete", "3 of gates (compare judges them)"):
            self.assertIn(f"left out: {line}\n", said)
        self.db.unlink()
        make(self.db, *nights(3, origin="simulated"))
        said = self.history(self.db, code=2)
        self.assertIn("no complete, untraced, measured run", said)

    @NEEDS_RUPTURES
    def test_a_step_that_nobody_expected_is_shown(self) -> None:
        made = make(self.db, *nights(15), *nights(15, 15, slow=1.05))
        said = self.history(self.db, code=3)
        self.assertRegex(
            said, r"change point: cost \+[45]\.\d\d % \[.*\] since 2026-01-16T03:00:00, run [0-9a-f]{8}, not expected"
        )
        (change,) = self.document(self.db, code=3)["series"][0]["change_points"]
        self.assertEqual(change["run"], made[15]["full"])
        self.assertTrue(change["low"] < 0.05 < change["high"])

    def test_without_ruptures_the_rest_works(self) -> None:
        make(self.db, *nights(20))
        with mock.patch.object(change_points, "available", return_value=False):
            said = self.history(self.db, code=0)
            self.assertIsNone(self.document(self.db, code=0)["series"][0]["change_points"])
        self.assertRegex(said, r"\nchange points: not looked for, since Python .* has no module ruptures: install hvdb")


class ExpectedTest(HistoryCase):
    def test_an_accepted_change_begins_a_new_history(self) -> None:
        made = make(self.db, *nights(19), *nights(1, 19, slow=1.05))
        self.file.write_text("# ours\n[[expected]]\nmodel = 'vgg16'\nsince = 2025-01-01\nreason = 'old'")
        words = (self.db, "--annotations", self.file)
        self.history(*words, code=1)
        said = self.history(*words, "--accept", 'a "safer" default', code=0)
        self.assertRegex(said, r"REGRESSION\n")
        self.assertIn(f"accepted in {self.file}: resnet101, ranks 2, since session ", said)
        text = self.file.read_text()
        self.assertTrue(text.startswith("# ours\n[[expected]]\nmodel = 'vgg16'\n"), "what stood there stays")
        old, new = tomllib.loads(text)["expected"]
        self.assertEqual((old["reason"], new["reason"], new["ranks"]), ("old", 'a "safer" default', 2))
        self.assertIsInstance(new["accepted"], datetime.date)
        said = self.history(*words, code=3)
        self.assertIn("0 earlier sessions", said)
        self.assertIn(f"expected since {new['since']}: a \"safer\" default (accepted {new['accepted']})", said)
        make(self.folder / "more.db", *nights(20, 20, slow=1.05), seed=2)
        document = self.document(self.db, self.folder / "more.db", *words[1:], code=0)
        (series,) = document["series"]
        self.assertEqual((series["judgement"]["earlier"], len(series["sessions"])), (20, 40))
        self.assertEqual(series["expected"][0]["run"], made[19]["full"])
        self.assertFalse(series["change_points"], "the step was expected")

    def test_accept_makes_the_file(self) -> None:
        make(self.db, *nights(3))
        self.history(self.db, "--annotations", self.file, "--accept", "first", code=0)
        self.history(self.db, "--annotations", self.file, "--accept", "second", code=0)
        self.assertEqual([entry.reason for entry in expected.read(self.file)], ["first", "second"])

    def test_an_entry_holds_for_its_network_ranks_and_time(self) -> None:
        make(self.db, *nights(60), *nights(60, ranks=4))
        words = (self.db, "--annotations", self.file)
        for since in ('"2026-01-11"', "2026-01-11", '"2026-01-11T03:00:00Z"', '"2026-01-11T04:30:00+02:00"'):
            with self.subTest(since):
                self.file.write_text(f'[[expected]]\nranks = 4\nsince = {since}\nreason = "new disks"\n')
                series = self.document(*words, code=0)["series"]
                self.assertEqual([entry["judgement"]["earlier"] for entry in series], [59, 49])

    def test_an_entry_may_explain_a_new_series(self) -> None:
        newer = {**CPU, "lib.onednn": ("3.6", 1)}
        make(self.db, *nights(20), *nights(3, 20, provenance=newer, fingerprint="bb"))
        for since, shown in (("2026-01-21", [0, 1]), ("2026-01-15", [1, 0]), ("2026-01-01", [0, 0])):
            with self.subTest(since):
                self.file.write_text(f'[[expected]]\nsince = {since}\nreason = "oneDNN 3.6"\n')
                series = self.document(self.db, "--annotations", self.file, code=3)["series"]
                self.assertEqual([len(entry["expected"]) for entry in series], shown, "shown where it parts sessions")

    def test_accept_writes_one_entry_for_a_network_and_its_ranks(self) -> None:
        made = make(self.db, *nights(3), *nights(2, 3, columns={"threads": 2}), *nights(1, 5, model="vgg16"))
        self.history(self.db, "--annotations", self.file, "--accept", "why", code=0)
        entries = {entry.model: entry.since for entry in expected.read(self.file)}
        sessions = {run.uuid: run.session_uuid for run in runs.load([self.db])}
        first = {"resnet101": sessions[made[2]["full"]], "vgg16": sessions[made[5]["full"]]}
        self.assertEqual(entries, first, "from the older of the two sessions on, both count")

    def test_an_entry_may_name_a_session_that_is_not_shown(self) -> None:
        made = make(self.db, *nights(40), *nights(40, model="vgg16"))
        self.file.write_text(f'[[expected]]\nsince = "{made[10]["solo"]}"\nreason = "new disks"\n')
        (series,) = self.document(self.db, "--annotations", self.file, "--model", "vgg16", code=0)["series"]
        self.assertIn(series["judgement"]["earlier"], (28, 29), "the two sessions of that night have one time")

    def test_an_entry_without_its_session_is_said(self) -> None:
        make(self.db, *nights(20))
        self.file.write_text('[[expected]]\nsince = "abcd"\nreason = "gone"\n')
        said = self.history(self.db, "--annotations", self.file, code=0)
        self.assertIn("expected since abcd: gone: no session here starts so", said)

    def test_bad_files(self) -> None:
        make(self.db, *nights(2))
        for text, message in (
            ("x = 1", r"expected.toml: x: an entry begins with \[\[expected\]\], and nothing else"),
            ('[[expected]]\nreason = "x"', r"expected\[1\]: since is missing"),
            ('[[expected]]\nsince = "2026-01-01"', r"expected\[1\]: reason is missing"),
            ('[[expected]]\nsince = "2026-01-01"\nreason = " "', r"expected\[1\].reason: ' ' is not a reason"),
            ('[[expected]]\nsince = "2026-13-01"\nreason = "x"', r"expected\[1\].since: '2026-13-01' is not a date"),
            ('[[expected]]\nsince = "abc"\nreason = "x"', r"expected\[1\].since: 'abc' is neither a date nor four"),
        ):
            with self.subTest(text[:60]):
                self.file.write_text(text)
                self.refused(message, self.db, "--annotations", self.file)

    def test_a_pipe_or_a_loop_is_no_file(self) -> None:
        make(self.db, *nights(2))
        os.mkfifo(self.file)
        self.refused("expected.toml: not a file", self.db, "--annotations", self.file)
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        for option in ("--annotations", "--thresholds", "--json", "--plot"):
            with self.subTest(option):
                self.assertNotIn("defect", self.history(self.db, option, loop, code=2))

    def test_what_cannot_be_accepted(self) -> None:
        make(self.db, *nights(2))
        self.refused("--accept: name the file", self.db, "--accept", "x")
        for reason in ("", " ", "a\nb", "\x1b[2J"):
            self.refused("--accept: the reason is empty, or", self.db, "--accept", reason, "--annotations", self.file)
        self.assertFalse(self.file.exists())
        for text in ("[[expected]", "x = 1", "a = '''"):
            self.file.write_text(text)
            self.refused("expected.toml: ", self.db, "--accept", "x", "--annotations", self.file)
            self.assertEqual(self.file.read_text(), text)

    def test_a_strangers_network_comes_back_from_the_file(self) -> None:
        hostile = '"]\n[[expected]]\x1b\x7f\\u0041\u202e'
        entries = [Expected("abcd", False, "why", hostile, 2, "2026-01-01")]
        expected.append(self.file, entries)
        self.assertEqual(expected.read(self.file), tuple(entries))

    def test_a_uuid_that_looks_like_a_date_is_not_written(self) -> None:
        with self.assertRaisesRegex(HvdbError, "would not be read back"):
            expected.append(self.file, [Expected("2026-01-01", False, "why")])
        self.assertFalse(self.file.exists())


class OutputTest(HistoryCase):
    def test_a_file_that_cannot_be_written_leaves_the_verdict(self) -> None:
        make(self.db, *nights(25), *nights(1, 25, slow=1.1))
        said = self.history(self.db, "--json", "/dev/full", code=2)
        self.assertIn("REGRESSION", said)
        self.assertIn("/dev/full", said)

    def test_a_plot_of_everything(self) -> None:
        newer = {**CPU, "lib.$\\frac": ("3.6", 1)}
        made = make(
            self.db,
            *nights(22),
            *nights(50, 22, slow=1.04, provenance=newer, fingerprint="bb"),
            *nights(42, model="vgg16"),
        )
        self.file.write_text('[[expected]]\nsince = 2026-01-02\nreason = "$\\\\frac$ \\u001b[2J"\n')
        for name in ("history.png", "history.svg"):
            self.history(self.db, "--annotations", self.file, "--plot", self.folder / name, code=0)
        described = Image.open(self.folder / "history.png").text["Description"]
        self.assertEqual(set(described.split()[1:]), {run["full"] for run in made})
        drawn = (self.folder / "history.svg").read_text()
        self.assertNotIn("\x1b", drawn)

    def test_what_a_panel_shows(self) -> None:
        make(self.db, *nights(25), *nights(1, 25, slow=1.1))
        with mock.patch.object(figure, "save") as save:
            self.history(self.db, "--plot", self.folder / "x.png", code=1)
        drawn = save.call_args[0][0]
        self.addCleanup(figure.plt.close, drawn)
        (axes,) = drawn.axes
        labels = [text.get_text() for text in axes.get_legend().get_texts()]
        self.assertEqual(labels, ["series 1", "REGRESSION", "median", "2 % slower", "prediction interval"])
        looks = [*plot_history.SERIES_LOOKS, *plot_history.VERDICT_LOOKS.values()]
        self.assertEqual(len({marker for _, marker in looks}), len(looks), "told apart without colour")

    def test_options_that_make_no_sense(self) -> None:
        make(self.db, *nights(2))
        for words, message in (
            (("--plot", "x.pdf"), r"--plot x\.pdf: is neither .png nor .svg"),
            (("--json", self.db), "is named twice"),
            (("--json", self.folder), "is a folder"),
            (("--model", "vgg16"), "nothing to show"),
            (("--new", "zzzz"), "--new zzzz: is not a file, and no session"),
            (("--annotations", self.folder / "none.toml"), "none.toml: cannot be read: No such file"),
        ):
            with self.subTest(words):
                self.refused(message, self.db, *words)
        self.assertIn("usage", self.history(self.db, "--metric", "speed", code=2))
