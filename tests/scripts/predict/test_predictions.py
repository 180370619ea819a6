"""Readers of predictions: what predict writes is read and satisfies its schema; files of strangers are refused."""

import hashlib
import json
import unittest
from pathlib import Path
from typing import Any

import jsonschema
import predicted as made
from test_predict import PredictTest, collectives, training

from harness import FolderTest
from synthetic_store import REPOSITORY

from hvdb.base.errors import HvdbError
from hvdb.read import predictions

SCHEMA = json.loads((REPOSITORY / "results" / "prediction.schema.json").read_text(encoding="utf-8"))


class ReaderTest(FolderTest):
    def written(self, document: object) -> Path:
        file = self.folder / "p.json"
        file.write_text(document if isinstance(document, str) else json.dumps(document), encoding="utf-8")
        return file

    def refused(self, document: object, text: str) -> None:
        with self.assertRaisesRegex(HvdbError, text) as caught:
            predictions.read(self.written(document))
        said = str(caught.exception)
        self.assertTrue(said.startswith(f"{self.folder / 'p.json'}: ") and len(said.splitlines()) == 1, said)

    def test_a_document_is_read_and_satisfies_the_schema(self) -> None:
        document = made.document()
        jsonschema.validate(document, SCHEMA)
        file = self.written({**document, "new": [{"key": 1}]})
        read = predictions.read(file)
        self.assertEqual((read.file, read.sha256), (file, hashlib.sha256(file.read_bytes()).hexdigest()))
        self.assertEqual(read.profile, predictions.Profile("resnet50", "images", 8, "fp32", "a"))
        self.assertEqual((read.device, read.ranks_per_node, read.confidence), ("cpu", 2, 0.9))
        self.assertEqual((read.sessions, read.inputs), (("s",), (predictions.Input("a.db", "0" * 64),)))
        self.assertEqual(read.what_ifs[1].hardware, {"link_gbit": 100})
        self.assertEqual([(row.what_if, row.ranks) for row in read.rows], [(0, 1), (0, 2), (0, 64), (1, 64)])
        self.assertEqual(read.rows[1].parts["interference"], -0.001)
        self.assertAlmostEqual(read.rows[1].efficiency.low, 0.85)

    def test_hostile_files(self) -> None:
        def with_row(**changes: Any) -> dict[str, Any]:
            return made.document(rows=[{**made.row(2, 0.9), **changes}])

        upside_down = {"low": 0.9, "middle": 0.8, "high": 1.0}
        nothing = {"low": 0.0, "middle": 0.8, "high": 1.0}
        cases = {
            "more than 8 MiB": '"' + " " * (9 << 20),
            "its format is not hvdb-prediction": {"format": "hvdb-verdict"},
            "of version 2, and this program knows version 1": made.document(version=2),
            "'predicted' is not true": made.document(predicted=False),
            "confidence: 90 is not a number from 0 to 1": made.document(confidence=90),
            "profile.model: 'm+...m+' is not a text of at most 300": made.document(model="m" * 301),
            "profile.units_per_step: True is not a whole number": made.document(units_per_step=True),
            "latest_input: 'yesterday' is not a time": made.document(latest_input="yesterday"),
            r"inputs\[1\].sha256: 'A+' is not a SHA-256": made.document(inputs=[{"file": "a", "sha256": "A" * 64}]),
            "the first of what_ifs is not the run": made.document(what_ifs=[]),
            r"rows\[1\]: 1 is not a table": made.document(rows=[1]),
            r"rows: \[1, 1, .*\] is not a list of at most 4096": made.document(rows=[1] * 4097),
            "no rows": made.document(rows=[]),
            "or two of one what-if and number of ranks": made.document(rows=[made.row(2, 0.9)] * 2),
            "a row of a what-if that is not there": with_row(what_if=2),
            r"rows\[1\].nodes: 3 is more than the 2 ranks": with_row(nodes=3),
            "efficiency: has not low <= middle <= high": with_row(efficiency=upside_down),
            "efficiency.low: 0.0 is not a number above 0": with_row(efficiency=nothing),
            "step_seconds.low: 999999999999.95 is not a number above 0": with_row(step_seconds=made.band(1e12)),
            "parts.exposed: 'much' is not a number": with_row(parts={"exposed": "much"}),
        }
        for text, document in cases.items():
            with self.subTest(text):
                self.refused(document, text)
        self.refused(json.dumps(with_row()).replace("0.9", "1e999"), "is not a number")
        with self.assertRaisesRegex(HvdbError, "cannot be read: No such file"):
            predictions.read(self.folder / "none")


class PredictWritesTest(PredictTest):
    def test_what_predict_writes_satisfies_the_schema_and_is_read(self) -> None:
        self.measure(training(), collectives(1, ranks=2, plane="shm", seconds=1e-5))
        document = self.document("1,2")
        jsonschema.validate(document, SCHEMA)
        read = predictions.read(self.json)
        self.assertEqual([row.ranks for row in read.rows], [1, 2])
        self.assertIn(str(self.db), [one.file for one in read.inputs])


if __name__ == "__main__":
    unittest.main()
