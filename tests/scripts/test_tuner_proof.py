"""Tests tuner_proof, which compares the choices of --tune-schedule with the best setting, on known times."""

from __future__ import annotations

import re
import sys
import unittest

from harness import SCRIPTS
from synthetic_store import REPOSITORY

from hvdb.errors import HvdbError

sys.path.insert(0, str(SCRIPTS / "maintain"))
import tuner_proof
from tuner_proof import Result, Search, Setting

MIB = 1 << 20


def setting(name: str) -> Setting:
    return Setting(("--bucket-mb", name))


class SpaceTest(unittest.TestCase):
    def test_every_position_of_every_knob(self) -> None:
        static = tuner_proof.space("static", 1000 * MIB, 1)
        self.assertEqual(len(static), 9)
        self.assertEqual(static[0].text, "--segment-kb 256 --bucket-mb 25", "the default comes first")
        self.assertEqual(len(set(static)), 9)
        self.assertEqual(len(tuner_proof.space("negotiated", 1000 * MIB, 1)), 27)
        self.assertEqual(len(tuner_proof.space("static", 1000 * MIB, 4)), 36)

    def test_one_size_above_the_gradients_is_enough(self) -> None:
        sizes = {found.options[3] for found in tuner_proof.space("static", 20 * MIB, 1)}
        self.assertEqual(sizes, {"25", "6.25"})

    def test_the_positions_are_those_of_the_search(self) -> None:
        source = (REPOSITORY / "bench/train/schedule_search.cpp").read_text(encoding="utf-8")
        self.assertEqual(re.search(r"kSizeFactor = (\d+)", source)[1], "4")
        between = re.search(r"kBetweenNodes\{([^}]*)\}", source) or re.search(r"kBetweenNodes = \{([^}]*)\}", source)
        names = ["auto" if name == "kAuto" else name[1:].lower() for name in re.findall(r"k[A-Z]\w+", between[1])]
        self.assertEqual(sorted({"auto", *names}), sorted(tuner_proof._ALGORITHMS))

    def test_a_choice_is_read_from_the_provenance(self) -> None:
        provenance = {
            "comm.segment_bytes": "65536",
            "engine.fusion_threshold_bytes": str(32 * MIB),
            "engine.cycle_time_us": "250",
            "engine.bucket_bytes": "6553600",
            "comm.algorithm": "ring",
        }
        found = tuner_proof.chosen_setting(provenance, "static", 2)
        self.assertEqual(found.text, "--segment-kb 64 --bucket-mb 6.25 --algorithm ring")
        self.assertIn(found, tuner_proof.space("static", 1000 * MIB, 2))
        found = tuner_proof.chosen_setting(provenance, "negotiated", 1)
        self.assertIn(found, tuner_proof.space("negotiated", 1000 * MIB, 1))


class JudgeTest(unittest.TestCase):
    def test_the_best_is_chosen_by_one_half_and_judged_by_the_other(self) -> None:
        # "25" is faster than "100" only in the even rounds, by chance.
        rounds = {setting("25"): [1.0, 2.2, 1.0, 2.2], setting("100"): [1.1, 2.0, 1.1, 2.0]}
        result = Result("static", [Search(setting("100"), 9), Search(setting("25"), 9)], rounds)
        best, ratios = tuner_proof.judge(result)
        self.assertEqual(best, setting("25"))
        self.assertAlmostEqual(ratios[0][1], 2.0 / 2.2)
        self.assertAlmostEqual(ratios[1][1], 1.0)

    def test_a_bad_choice_shows(self) -> None:
        rounds = {setting("25"): [1.0, 1.0], setting("100"): [1.5, 1.5]}
        _, ((_, ratio),) = tuner_proof.judge(Result("static", [Search(setting("100"), 9)], rounds))
        self.assertAlmostEqual(ratio, 1.5)

    def test_a_choice_outside_of_the_space_is_an_error(self) -> None:
        result = Result("static", [Search(setting("7"), 9)], {setting("25"): [1.0, 1.0]})
        self.assertRaisesRegex(HvdbError, "chose '--bucket-mb 7'", tuner_proof.judge, result)
