"""Tests that two recordings of one name are told apart, or refused, wherever runs that replay them are used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import FolderTest, call
from synthetic_store import SessionSpec, make

from hvdb.base import data, identity
from hvdb.base.errors import HvdbError, NotComparable
from hvdb.judge import comparable, sides
from hvdb.read import runs
from hvdb.show import tables

OLD = {"cpu.model": ("Test CPU", 1)}
ONE, TWO = identity.of_content(b"one"), identity.of_content(b"two")


def replay(profile: str, **changes: Any) -> SessionSpec:
    """A session that replays `profile` ("": its program stored none). Steps of TWO are 7.5 times as long."""
    times = {name: 7.5 * value for name, value in (("solo", 1.0), ("none", 1.02), ("full", 1.25))}
    facts = OLD | ({"replay.profile": (profile, 1)} if profile else {}) | changes.pop("facts", {})
    usual = {"provenance": facts, "columns": {"device": "replay"}, "fingerprint": profile or "old"}
    return SessionSpec(model="gpt2", **{**usual, **(times if profile == TWO else {}), **changes})


def gated(side: str, pair: int, profile: str) -> SessionSpec:
    labels = {"gate.cell": "one", "gate.side": side, "gate.pair": str(pair)}
    return replay(profile, facts={f"label.{key}": (value, 0) for key, value in labels.items()})


class ReplaysTest(FolderTest):
    def test_the_hash_is_that_of_hvd_bench(self) -> None:
        # http://www.isthe.com/chongo/src/fnv/test_fnv.c; session_test has the same in C++.
        for content, digits in ((b"", "cbf29ce484222325"), (b"a", "af63dc4c8601ec8c"), (b"foobar", "85944171f73967e8")):
            self.assertEqual(identity.of_content(content), digits)
        for file, said in ((self.folder, "not a file"), (self.folder / "none", "cannot be read: No such file")):
            with self.assertRaisesRegex(HvdbError, said):
                identity.of_file(file)

    def test_efficiency_has_a_row_for_each_recording(self) -> None:
        make(self.db, replay(ONE), replay(TWO), replay(""))
        for words in ((), ("--mix-fingerprints",)):
            _, out, _ = call("efficiency", self.db, "--json", *words, code=0)
            rows = [cell for cell in json.loads(out)["cells"] if cell["kind"] == "full"]
            rates = {cell["configuration"]["replay"]: cell["images_per_second"]["value"] for cell in rows}
            self.assertEqual(set(rates), {ONE, TWO, runs.UNKNOWN})
            self.assertAlmostEqual(rates[ONE] / rates[TWO], 7.5, places=1)
        _, out, _ = call("efficiency", self.db, code=0)
        for profile in (ONE[: tables.SHOWN_DIGITS], TWO[: tables.SHOWN_DIGITS], runs.UNKNOWN):
            self.assertEqual(out.count(f"gpt2, replayed compute (profile {profile})"), 2, out)
        _, out, _ = call("ranks", self.db, "--phase", "full", code=0)
        self.assertEqual(out.count("replayed compute"), 3, "the newest run of each recording")
        (system,) = comparable.systems(runs.load([self.db]))
        self.assertEqual(len({run.replay for run in system.runs}), 3, "one machine, whichever recording it replays")

    def test_history_has_a_series_for_each_recording(self) -> None:
        nights = [
            replay("", started="2026-01-01"),
            replay(ONE, started="2026-01-02"),
            replay(TWO, started="2026-01-03"),
        ]
        make(self.db, *nights, replay(ONE, started="2026-01-04"))
        _, out, _ = call("history", self.db, code=3)
        for profile in (ONE, TWO, runs.UNKNOWN):
            self.assertRegex(out, rf"(?m)^gpt2, .*, profile {profile}  ")
        self.assertIn(f"a new series: replay.profile: 'None' -> '{ONE}'", out)
        self.assertIn(f"a new series: replay.profile: '{ONE}' -> '{TWO}'", out)
        self.assertEqual(out.count("do not say which recording they replayed"), 1)

    def test_a_gate_refuses_sides_of_two_recordings(self) -> None:
        make(self.db, *(gated(side, pair, profile) for pair in (1, 2) for side, profile in (("a", ONE), ("b", TWO))))
        with self.assertRaisesRegex(NotComparable, f"cell one: replay.profile is '{ONE}' in run .* '{TWO}' in run"):
            sides.labelled(runs.load([self.db]))

    def test_a_gate_takes_a_side_that_did_not_store_it_and_says_so(self) -> None:
        make(self.db, *(gated(side, pair, profile) for pair in (1, 2) for side, profile in (("a", ""), ("b", TWO))))
        (cell,) = sides.labelled(runs.load([self.db]))
        differing = {one.key: (one.first, one.second) for one in sides.differences(cell) if one.in_fingerprint}
        self.assertEqual(differing, {"replay.profile": (None, TWO)})

    def test_rerun_takes_only_the_recording_of_the_run(self) -> None:
        (made,) = make(self.db, replay(ONE))
        file = self.folder / "gpt2.replay"
        file.write_bytes(b"two")
        words = ("rerun", made["full"], self.db, "--launch", "mpirun -n 2", "--program", "/bin/true", "--replay", file)
        said = call(*words, code=4)[2]
        self.assertRegex(said, f"gpt2.replay: is profile {TWO}, and run {made['full'][:8]} replayed profile {ONE}")
        file.write_bytes(b"one")
        self.assertIn("runs: ", call(*words, code=0)[1])

    def test_rerun_takes_the_step_that_ships_if_the_run_replayed_this_one(self) -> None:
        shipped = data.STEPS / "gpt2.replay"
        for profile, named, takes in (
            (identity.of_file(shipped), "gpt2", True),
            (identity.of_file(shipped), "./gpt2", False),
            (ONE, "gpt2", False),
            ("", "gpt2", False),
        ):
            self.db.unlink(missing_ok=True)
            (made,) = make(self.db, replay(profile))
            self.change("UPDATE session SET command_line = ?", f"hvd_bench --ranks 2 --replay {named}")
            words = ("rerun", made["full"], self.db, "--program", "/bin/true")
            _, out, err = call(*words, code=0 if takes else 2)
            self.assertEqual(f" --replay={shipped} " in out, takes, out)
            self.assertEqual(f"replays the file '{named}': name your copy of it with --replay" in err, not takes, err)
        said = call(*words, "--replay", "gpt3", code=2)[2]
        self.assertEqual(said, "scripts/rerun: gpt3: there is no such file, and the steps that ship are gpt2, llama\n")

    def test_commands_take_the_name_of_a_step_that_ships(self) -> None:
        make(self.db, replay(ONE))
        words = ("predict", self.db, "--ranks", "2", "--program", "/bin/true", "--profile")
        self.assertIn("gpt3: there is no such file, and the steps", call(*words, "gpt3", code=2)[2])
        self.assertIn("no session with the phases solo, none and full of gpt2, fp32, ", call(*words, "gpt2", code=3)[2])
        self.assertEqual(data.step("./gpt2"), Path("gpt2"))
