"""Tests hvdb export: Prometheus's text format by a strict parser and by the official one, and lines of JSON."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import unittest
from pathlib import Path

import prometheus_text
from prometheus_text import Samples

from harness import FolderTest, call, full_disk
from synthetic_store import REPOSITORY, CollSpec, SessionSpec, make

from hvdb.base import record
from hvdb.read import runs
from hvdb.show import export

# Parts of this text end a label, a line and a metric, and move the cursor of a terminal.
HOSTILE = 'a"} 1\nfake_total 2\n# TYPE x counter\n\\" \\n \x1b[2J caf\u00e9 \u2028 {b="c",d="e"} \\'
PARTS = {"interference", "stragglers", "control_plane", "update", "residual", "exposed_communication"}


def of_phase(samples: Samples, phase: str = "full", **labels: str) -> list[float]:
    """Returns the values of the samples that have this phase and these labels."""
    wanted = {"phase": phase, **labels}.items()
    return [value for pairs, value in samples.items() if wanted <= dict(pairs).items()]


class PrometheusTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.folder / "runs.prom"

    def exported(self, *others: Path) -> dict[str, Samples]:
        self.assertEqual(call("export", self.db, *others, "--prometheus", self.file, code=0)[1:], ("", ""))
        return prometheus_text.parse(self.file.read_text(encoding="utf-8"))

    def test_the_newest_run_of_each_cell(self) -> None:
        newest = SessionSpec(full=1.6, started="2026-01-02T03:04:05.250Z")
        made = make(self.db, newest, SessionSpec(started="2026-01-01"), SessionSpec(ranks=4))
        metrics = self.exported()
        stored = runs.find(runs.load([self.db]), made[0]["full"])
        for name, expected in {
            "hvd_bench_start_timestamp_seconds": 1767323045.25,  # date -d 2026-01-02T03:04:05.25Z +%s
            "hvd_bench_step_seconds": stored.step_seconds,
            "hvd_bench_step_low_seconds": stored.step_seconds_low,
            "hvd_bench_step_high_seconds": stored.step_seconds_high,
            "hvd_bench_units_per_second": 2 * 8 / stored.step_seconds,
            "hvd_bench_efficiency_ratio": 1 / 1.6,
            "hvd_bench_efficiency_low_ratio": 1 / 1.6 - 0.006,
            "hvd_bench_efficiency_high_ratio": 1 / 1.6 + 0.006,
        }.items():
            (value,) = of_phase(metrics.pop(name), ranks="2")
            self.assertAlmostEqual(value, expected, places=9, msg=name)
        names = {f"hvd_bench_step_part_{end}ratio" for end in ("", "low_", "high_")}
        self.assertEqual(set(metrics), names)
        shares = of_phase(metrics["hvd_bench_step_part_ratio"], ranks="2")
        self.assertAlmostEqual(sum(shares), 1 - 1 / 1.6)
        parts = {dict(pairs)["part"] for pairs in metrics["hvd_bench_step_part_low_ratio"]}
        self.assertEqual(parts, PARTS)
        (update,) = of_phase(metrics["hvd_bench_step_part_low_ratio"], ranks="2", part="update")
        self.assertAlmostEqual(update, 0.01 - 0.006)

    def test_cells_are_told_apart_and_phases_are_cells(self) -> None:
        others = [SessionSpec(columns={"threads": 2}), SessionSpec(columns={"auxiliary_head": 1})]
        make(self.db, SessionSpec(), SessionSpec(provenance={"work.unit": ("tokens", 1)}), *others)
        samples = self.exported()["hvd_bench_step_seconds"]
        self.assertEqual(len(samples), 4 * 3)
        self.assertEqual([len(of_phase(samples, phase)) for phase in ("solo", "none", "full")], [4, 4, 4])
        self.assertEqual(len(of_phase(samples, unit="tokens", auxiliary_head="false", model="resnet101")), 1)
        self.assertEqual({tuple(name for name, _ in pairs) for pairs in samples}, {tuple(sorted(export.LABELS))})

    def test_options_and_kinds_of_machines_are_cells_and_software_is_not(self) -> None:
        def session(month: int, **facts: str) -> SessionSpec:
            known = {"cpu.model": "Test CPU", "lib.onednn": "3.5", "engine.bucket_bytes": "26214400", **facts}
            provenance = {key: (value, 1) for key, value in known.items()}
            return SessionSpec(
                full=1 + month / 10, started=f"2026-0{month}", provenance=provenance, fingerprint=f"{month}"
            )

        small, ring = {"engine.bucket_bytes": "1048576"}, {"comm.algorithm": "ring"}
        others = [small, ring, {"env.NCCL_ALGO": "Tree"}, {"replay.profile": "1" * 16}, {"cpu.model": "Other CPU"}]
        newer = [session(8, **{"lib.onednn": "3.6"}), session(9, **small)]
        make(self.db, session(1), *(session(i, **other) for i, other in enumerate(others, 2)), *newer)
        samples = self.exported()["hvd_bench_step_seconds"]
        found = {dict(pairs)["fingerprint"] for pairs in samples if dict(pairs)["phase"] == "full"}
        self.assertEqual(found, {f"{month}full" for month in (3, 4, 5, 6, 8, 9)}, "months 1 and 2 have a newer run")

    def test_the_files_of_two_machines_have_no_series_in_common(self) -> None:
        make(self.db, SessionSpec())
        first = self.exported()
        self.change("UPDATE rank SET host = 'n2'")
        for name, samples in self.exported().items():
            self.assertFalse(first[name].keys() & samples.keys(), name)

    def test_an_efficiency_that_is_not_resolved_has_ends_alone(self) -> None:
        make(self.db, SessionSpec())
        self.change("UPDATE decomposition SET low = 0.5, high = 0.9 WHERE component = 'efficiency'")
        metrics = self.exported()
        self.assertNotIn("hvd_bench_efficiency_ratio", metrics)
        self.assertEqual(of_phase(metrics["hvd_bench_efficiency_high_ratio"]), [0.9])
        self.change("UPDATE decomposition SET low = NULL, high = NULL WHERE component = 'efficiency'")
        self.assertFalse([name for name in self.exported() if "efficiency" in name])

    def test_runs_that_say_nothing_about_training_are_left_out(self) -> None:
        gate = {"label.gate.cell": ("one", 0)}
        others = [SessionSpec(traced=1), SessionSpec(origin="simulated"), SessionSpec(status="incomplete")]
        make(self.db, *others, SessionSpec(provenance=gate))
        _, _, said = call("export", self.db, "--prometheus", self.file, code=2)
        self.assertRegex(said, r"^\S+: nothing to show: no complete, untraced, measured run or collective outside")
        self.assertFalse(self.file.exists())
        left_out, self.db = self.db, self.folder / "older.db"
        make(self.db, SessionSpec(started="2025", full=1.3), seed=2)
        self.assertEqual(self.exported(left_out), self.exported())

    def test_a_strangers_texts(self) -> None:
        make(self.db, *(SessionSpec(started=f"2026-0{month}") for month in (1, 2, 3)))
        # The escaped forms of the last two names are equal. Two equal samples would void the whole file.
        for month, model in enumerate((HOSTILE, "a\x1b", "a\\x1b"), 1):
            self.change("UPDATE run SET model = ? WHERE started_utc = ?", model, f"2026-0{month}")
        for column in ("compute_type", "comm", "started_utc"):
            self.change(f"UPDATE run SET {column} = ?", HOSTILE)
        self.change("UPDATE provenance SET key = 'work.unit', value = ? WHERE key = 'cpu.model'", HOSTILE)
        metrics = self.exported()
        self.assertNotIn("hvd_bench_start_timestamp_seconds", metrics)
        samples = metrics["hvd_bench_step_seconds"]
        self.assertEqual(len(samples), 2 * 3)
        values = {dict(pairs)["model"] for pairs in samples}
        shown = HOSTILE.replace("\n", "\\n").replace("\x1b", "\\x1b").replace("\u2028", "\\u2028")
        self.assertEqual(values, {shown, "a\\x1b"})
        self.assertTrue(all(line.isprintable() for line in self.file.read_text(encoding="utf-8").split("\n")))

    @unittest.skipUnless(importlib.util.find_spec("prometheus_client"), "needs prometheus_client (PyPI)")
    def test_the_official_parser_reads_the_same(self) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        make(self.db, SessionSpec(), SessionSpec(ranks=4))
        self.change("UPDATE run SET model = ?", HOSTILE)
        metrics = self.exported()
        read = {family.name: family for family in text_string_to_metric_families(self.file.read_text(encoding="utf-8"))}
        self.assertEqual(set(read), set(metrics))
        for name, family in read.items():
            self.assertEqual(family.type, "gauge")
            self.assertEqual(
                {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}, metrics[name]
            )

    def test_names_follow_the_rules_and_are_those_that_are_documented(self) -> None:
        make(self.db, SessionSpec(), CollSpec())
        metrics = self.exported()
        for name in metrics:
            self.assertRegex(name, r"^hvd_bench_[a-z_]+_(seconds|ratio|per_second)$")
        page = (REPOSITORY / "docs/export.md").read_text(encoding="utf-8")
        self.assertEqual(set(re.findall("`(hvd_bench_[a-z_]+)`", page)), set(metrics))
        labels = page.partition("The labels ")[2].partition(" name the cell")[0]
        self.assertEqual(re.findall("`([a-z_]+)`", labels), list(export.LABELS))

    def test_the_strict_parser_is_strict(self) -> None:
        good = '# HELP a b\n# TYPE a gauge\na{b="c"} 1.5e-05\na{b="\\\\\\"\\n"} 2\n'
        self.assertEqual(prometheus_text.parse(good), {"a": {(("b", "c"),): 1.5e-05, (("b", '\\"\n'),): 2.0}})
        for before, after in (
            ("1.5e-05", "nan"),
            ("1.5e-05", "1 1700000000"),
            ('"c"', '"c'),
            ('"c"', '"c\\x"'),
            ('b="c"', 'b="c",b="d"'),
            ('b="\\\\\\"\\n"', 'b="c"'),
            ('a{b="c"}', 'x{b="c"}'),
            ('b="c"', '1b="c"'),
            ("# TYPE a gauge\n", ""),
            ("# HELP a b\n", ""),
            ("gauge", "counter"),
            ("2\n", "2"),
            ("2\n", "2\n# HELP c d\n# TYPE c gauge\n"),
            ("2\n", "2\n# HELP a d\n"),
        ):
            self.assertIn(before, good)
            with self.assertRaises(ValueError, msg=(before, after)):
                prometheus_text.parse(good.replace(before, after))


class JsonLinesTest(FolderTest):
    def lines(self) -> list[dict]:
        _, out, said = call("export", self.db, "--jsonl", "-", code=0)
        self.assertEqual(said, "")
        self.assertTrue(out.isascii())
        return [record.json_object(line, len(line)) for line in out.splitlines()]

    def test_every_run_has_a_line(self) -> None:
        cut = SessionSpec(status="incomplete", started="2026-01-01", phases=("full",))
        facts = {"caution.few_cpus": ("few processors", 0), "git.commit": ("abc", 1)}
        traced = SessionSpec(traced=1, started="2026-03", provenance=facts)
        made = make(self.db, SessionSpec(ranks=4, started="2026-02"), cut, traced)
        lines = self.lines()
        self.assertEqual([line["run"] for line in lines], [run.uuid for run in runs.load([self.db])])
        self.assertEqual(lines[0]["run"], made[1]["full"])
        self.assertEqual(
            (lines[0]["status"], lines[0]["parts"], lines[0]["efficiency_ratio"]), ("incomplete", {}, None)
        )
        (full,) = (line for line in lines if line["run"] == made[0]["full"])
        self.assertEqual((full["ranks"], full["host"], full["commit"], full["unit"]), (4, "n1", "abc", "images"))
        self.assertAlmostEqual(full["efficiency_ratio"], 0.8)
        self.assertEqual(set(full["parts"]), PARTS)
        self.assertAlmostEqual(full["parts"]["update"]["seconds"], 0.0125)
        self.assertEqual(lines[-1]["traced"], True)
        self.assertEqual(lines[-1]["cautions"], ["few processors"])

    def test_options_and_labels(self) -> None:
        facts = {"engine.bucket_bytes": ("1048576", 1), "option.num_iters": ("6", 0), "lib.glibc": ("2.36", 1)}
        facts |= {"env.OMP_NUM_THREADS": ("1", 1), "replay.profile": ("ab", 1), "label.night": ("7", 0)}
        make(self.db, SessionSpec(phases=("full",), provenance=facts))
        (line,) = self.lines()
        options = {key: facts[key][0] for key in ("engine.bucket_bytes", "env.OMP_NUM_THREADS", "replay.profile")}
        self.assertEqual((line["options"], line["labels"]), (options, {"night": "7"}))

    def test_no_value_is_nan_or_infinite(self) -> None:
        make(self.db, SessionSpec(phases=("full",)))
        self.change("UPDATE run SET final_loss = 9e999, images_per_second = 9e999, step_seconds = NULL")
        (line,) = self.lines()
        self.assertEqual((line["final_loss"], line["units_per_second"], line["step_seconds"]), (None, None, None))

    def test_a_strangers_texts_stay_on_their_line(self) -> None:
        make(self.db, SessionSpec(phases=("full",)))
        self.change("UPDATE run SET model = ?, checks = ?", HOSTILE, HOSTILE)
        (line,) = self.lines()
        self.assertEqual((line["model"], line["checks"]), (HOSTILE, HOSTILE))

    def test_the_keys_are_those_that_are_documented(self) -> None:
        page = (REPOSITORY / "docs/compatibility.md").read_text(encoding="utf-8")
        table = page.partition("## Lines of JSON")[2].partition("## ")[0]
        rows = [row.split("|") for row in table.splitlines() if row.startswith("| `")]
        documented = [key for row in rows for key in re.findall("`([a-z_]+)`", row[1])]
        make(self.db, SessionSpec())
        for line in self.lines():
            self.assertEqual(sorted(line), sorted(documented))


class FilesTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        make(self.db, SessionSpec())

    def test_what_cannot_be_written_leaves_the_old_file(self) -> None:
        old = self.folder / "old"
        old.write_text("old")
        (self.folder / "inner").mkdir()
        before = sorted(os.listdir(self.folder))
        for option in ("--prometheus", "--jsonl"):
            for file, message in (
                (self.folder / "none" / "x", "there is no folder"),
                (Path("/proc/x"), "/proc/x: "),  # a folder that takes no files, not even from root
                (Path("/dev/full"), "/dev/full: No space left on device"),
                (self.folder / "inner", "is a folder"),
                (self.db, "is named twice"),
            ):
                self.assertRegex(call("export", self.db, option, file, code=2)[2], rf"^[^\n]*{message}[^\n]*\n$")
            with full_disk(100):
                _, _, said = call("export", self.db, option, old, code=2)
            self.assertEqual(said, f"scripts/export: {old}: File too large\n")
            self.assertEqual(old.read_text(), "old")
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_both_files_at_once(self) -> None:
        files = self.folder / "a.prom", self.folder / "a.jsonl"
        call("export", self.db, "--prometheus", files[0], "--jsonl", files[1], code=0)
        prometheus_text.parse(files[0].read_text())
        self.assertEqual([json.loads(line)["phase"] for line in files[1].read_text().splitlines()].count("full"), 1)
        _, out, _ = call("export", self.db, "--prometheus", "-", "--jsonl", files[1], code=0)
        self.assertEqual(out, files[0].read_text())

    def test_nothing_to_write_and_two_texts_on_standard_output(self) -> None:
        for words in ((), ("--prometheus", "-", "--jsonl", "-")):
            self.assertIn("say what to write, and where", call("export", self.db, *words, code=2)[2])

    def test_a_store_of_collectives_alone(self) -> None:
        other = self.folder / "coll.db"
        make(other, CollSpec())
        lines = call("export", other, "--jsonl", "-", code=0)[1].splitlines()
        self.assertEqual([json.loads(line)["format"] for line in lines], ["hvdb-collective"] * 2)
        later = CollSpec(started="2026-02-02T03:04:05.000Z", seconds=2e-5, columns={"fingerprint": "00000000000000dd"})
        make(self.folder / "later.db", later, seed=2)
        text = call("export", other, self.folder / "later.db", "--prometheus", "-", code=0)[1]
        (seconds,) = re.findall(r'hvd_bench_collective_seconds{row="all_reduce float 1024 in.*dd-auto"} (\S+)', text)
        self.assertEqual(float(seconds), 2e-5, "new software ends the old series")
