"""hvdb predict --judge: predictions and runs that were measured after them, and what is no test of a prediction."""

import json
import unittest
from pathlib import Path
from typing import Any

import predicted

from harness import FolderTest, call
from synthetic_store import SessionSpec, make

from hvdb.predict import judge
from hvdb.read import predictions, runs

LATER = "2026-11-27T00:00:00.000Z"
FACTS = {"engine.bucket_bytes": "26214400", "engine.fusion_threshold_bytes": "134217728"}
FACTS |= {"engine.cache_capacity": "1024"}


class JudgeTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "p.json"

    def predict(self, **changes: Any) -> str:
        """Writes the prediction: 1 s alone, 64 ranks at 1.25 s [1.2, 1.3], an efficiency of 80 % [77, 83]. Returns its
        SHA-256."""
        ranks = changes.pop("ranks_of_rows", 64)
        row = {"what_if": 0, "ranks": ranks, "nodes": ranks, "step_seconds": {"low": 1.2, "middle": 1.25, "high": 1.3}}
        row |= {
            "efficiency": {"low": 0.77, "middle": 0.8, "high": 0.83},
            "steps": 200,
            "measured": None,
            "warnings": [],
        }
        row["parts"] = dict.fromkeys(predictions.PARTS, 0.0) | {"exposed": 0.1}
        plan = {"schedule": "static", "options": ["--schedule", "static", "--bucket-mb", "25"], "hardware": {}}
        other = {"text": "--bucket-mb 2", "schedule": "static", "options": [*plan["options"][:3], "2"], "hardware": {}}
        other["hardware"] = changes.pop("hardware", {})
        slower = {**row, "what_if": 1, "step_seconds": {"low": 2.2, "middle": 2.25, "high": 2.3}}
        made = predicted.document(
            what_ifs=[{"text": "", **plan}, other], rows=[row, slower], model="resnet101", ranks_per_node=1, **changes
        )
        self.file.write_text(json.dumps(made), encoding="utf-8")
        return predictions.read(self.file).sha256

    def session(self, label: str, ranks: int = 64, facts: dict[str, str] | None = None, **changes: Any) -> SessionSpec:
        known = {**FACTS, **(facts or {}), "label.prediction": label, "work.unit": "images"}
        known = {key: (value, 0) for key, value in known.items()}
        usual: dict[str, Any] = {
            "ranks": ranks,
            "ranks_per_host": 1,
            "started": LATER,
            "provenance": known,
            "noise": 0.0,
        }
        usual["columns"] = {"device": "cpu", "compute_type": "fp32", **changes.pop("columns", {})}
        return SessionSpec(**{**usual, **changes})

    def measure(self, *labels: str, **changes: Any) -> None:
        self.db.unlink(missing_ok=True)
        make(self.db, *(self.session(label, **changes) for label in labels))

    def judged(self, code: int) -> tuple[str, str]:
        _, out, err = call("predict", "--judge", self.file, self.db, code=code)
        return out, err

    def test_inside_and_outside(self) -> None:
        self.measure(self.predict())  # 1.25 s, and 1 s alone
        out, _ = self.judged(0)
        self.assertRegex(out, r"64 +1250\.0 \[1200\.0, 1300\.0\] +1250\.0 .*80\.0 \[77\.0, 83\.0\] +80\.0 +inside")
        self.assertIn("steps: 1 of 1 in their band; efficiencies: 1 of 1; of each, 9 of 10 are expected", out)
        self.measure(self.predict(), full=1.35)
        out, _ = self.judged(1)
        self.assertRegex(
            out, r"64 +1250\.0 .* +1350\.0 .* OUTSIDE +exposed communication \+\d+\.\d points of the predicted"
        )
        self.assertIn("steps: 0 of 1 in their band", out)

    def test_an_efficiency_outside_of_its_band(self) -> None:
        self.measure(self.predict(), full=1.25, solo=0.9, none=0.92)  # 72 %, though the step is as predicted
        self.assertIn("OUTSIDE", self.judged(1)[0])

    def test_runs_are_judged_by_their_options(self) -> None:
        label = self.predict()
        self.measure(label, facts={"engine.bucket_bytes": "2097152"})
        out, _ = self.judged(1)  # 1.25 s in place of 2.25 s
        self.assertRegex(out, r"64 +--bucket-mb 2 +2250\.0 .* OUTSIDE")
        self.db.unlink()
        make(self.db, *(self.session(label, facts={"engine.bucket_bytes": size}) for size in ("26214400", "1048576")))
        out, _ = self.judged(0)
        self.assertRegex(out, r"note: run \w+ on 64 ranks with --schedule static --bucket-mb 1 was not predicted")

    def test_a_run_does_not_say_on_which_link_it_was(self) -> None:
        self.measure(self.predict(hardware={"link_gbit": 100.0}), facts={"engine.bucket_bytes": "2097152"})
        self.assertRegex(self.judged(3)[1], "is a test of")

    def test_facts_of_the_predicted_run(self) -> None:
        self.measure("unknown")
        (run,) = (run for run in runs.load([self.db]) if run.phase == "full")
        facts = judge.training_facts(run)
        self.assertNotIn("engine.bucket_bytes", facts)
        self.measure(self.predict(training=facts))
        self.judged(0)
        self.measure(self.predict(training={**facts, "cpu.model": "another"}))
        self.assertIn("cpu.model: None, predicted 'another'", self.judged(4)[1])

    def test_one_rank_is_judged_by_its_step(self) -> None:
        label = self.predict(ranks_of_rows=1)
        self.measure(label, ranks=1, full=1.25, solo=1.0)
        self.judged(0)

    def test_what_differs_may_be_the_compute(self) -> None:
        self.measure(self.predict(), full=1.35, solo=1.2, none=1.2)
        self.assertIn("one rank alone +16.0 points", self.judged(1)[0])

    def test_a_run_alone_has_no_efficiency(self) -> None:
        self.measure(self.predict(), phases=("full",))
        out, _ = self.judged(0)
        self.assertRegex(out, r"83\.0\] +inside")

    def test_sessions_are_pooled(self) -> None:
        label = self.predict()
        make(self.db, *(self.session(label, full=full) for full in (1.1, 1.24, 1.28)))
        found, _ = judge.judge(predictions.read(self.file), runs.load([self.db]))
        self.assertAlmostEqual(found[0].step, 1.24)
        self.assertIsNone(found[0].interval)

    def test_what_is_no_test_of_the_prediction(self) -> None:
        label = self.predict()
        for code, said, changes in (
            (3, "is a test of .*: measure with --label prediction=[0-9a-f]{64}", {"label": "another"}),
            (2, "began before the newest input of", {"started": "2026-01-02T03:04:05.000Z"}),
            (4, "model: 'vgg16', predicted 'resnet101'", {"model": "vgg16"}),
            (4, "batch_size: '4', predicted '8'", {"batch_size": 4}),
            (4, "ranks on a node: '4', predicted '1'", {"ranks_per_host": 4}),
            (4, "device: 'replay', predicted 'cpu'", {"columns": {"device": "replay"}}),
            (3, "is a test of", {"status": "incomplete"}),
            (3, "is a test of", {"ranks": 32}),
        ):
            with self.subTest(said):
                self.measure(changes.pop("label", label), **changes)
                out, err = self.judged(code)
                self.assertEqual((out, len(err.splitlines())), ("", 1), err)
                self.assertRegex(err, said)

    def test_an_input_is_no_test(self) -> None:
        self.measure("unknown")
        session = runs.load([self.db])[0].session_uuid
        label = self.predict(sessions=[session])
        self.measure(label)
        found = runs.load([self.db])
        for run in found:
            run.columns["session_uuid"] = session
        with self.assertRaisesRegex(Exception, "is an input of"):
            judge.judge(predictions.read(self.file), found)

    def test_options_that_judge_does_not_take(self) -> None:
        self.measure(self.predict())
        for words in (["--ranks", "2"], ["--what-if", "--bucket-mb 3"], ["--json", self.folder / "a.json"]):
            _, _, err = call("predict", "--judge", self.file, self.db, *words, code=2)
            self.assertIn("--judge takes a prediction as it is", err)
        _, _, err = call("predict", self.db, code=2)
        self.assertIn("name --profile and --ranks, or a prediction to --judge", err)

    def test_a_damaged_prediction(self) -> None:
        self.measure(self.predict())
        Path(self.file).write_text("{", encoding="utf-8")
        _, err = self.judged(2)
        self.assertIn("not a prediction of predict --json: no JSON", err)


if __name__ == "__main__":
    unittest.main()
