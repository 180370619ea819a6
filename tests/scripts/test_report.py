"""Tests the report: its answers, that both forms say the same, that its HTML is allowed, and its size."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from html_check import Page
from limits import HANG

from harness import SCRIPTS, FolderTest, call, execute
from synthetic_store import SessionSpec, make, operation

from hvdb.base.errors import HvdbError
from hvdb.commands import module
from hvdb.judge import efficiency
from hvdb.read import runs
from hvdb.show import document, figure, html_page, markdown_page, report, tables
from hvdb.show.document import Bullets, Document, Figure, Listing, Paragraph, Section, Table

SVG = """<?xml version="1.0"?><!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/svg11.dtd">
<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="72pt" viewBox="0 0 72 36">
<metadata>made by a program</metadata><defs><style>*{stroke-linecap: butt}</style></defs>
<g id="figure_1"><path id="m1" style="fill: #222222; stroke: #ffffff"/><use xlink:href="#m1"/>
<g clip-path="url(#p1)"><text style="font: 9px 'DejaVu Sans'">a &lt;b&gt;</text></g>
<clipPath id="p1"><rect x="0"/></clipPath></g></svg>"""


def drawn(path: Path) -> Path:
    path.write_text(SVG, encoding="utf-8")
    return path


def page_of(*blocks: document.Block) -> Document:
    return Document("a <page>", "its *lead*", [Section("first & last", blocks, [Section("part", [Paragraph("end")])])])


class FormsTest(unittest.TestCase):
    """Compares the output of both writers for a document made by hand."""

    def test_markdown(self) -> None:
        page = page_of(
            Paragraph("a|b"), Bullets(["one", "two"]), Table(("x", "y"), [("k.1", "2")], first_is_code=True),
            Listing(["run it"]), Figure("a figure", drawn),
        )  # fmt: skip
        expected = (
            "# a &lt;page&gt;\n\nits \\*lead\\*\n\n## first &amp; last\n\na\\|b\n\n- one\n- two\n\n"
            "| x | y |\n|---|---|\n| `k.1` | 2 |\n\n```\nrun it\n```\n\n### part\n\nend\n"
        )
        self.assertEqual(markdown_page.text(page), expected)

    def test_html(self) -> None:
        page = page_of(
            Paragraph("a<b>\x1b"), Bullets(["one"]), Table(("x", "y"), [("k.1", "2")], first_is_code=True),
            Listing(["a", "b"]), Figure('a "figure"', drawn),
        )  # fmt: skip
        made = html_page.text(page)
        read = Page(made)
        self.assertEqual(read.faults(), [])
        self.assertEqual(read.headings, ["a <page>", "first & last", "part"])
        self.assertEqual(read.drawings, 1)
        for element in (
            "<p>a&lt;b&gt;\\x1b</p>",
            "<li>one</li>",
            '<tr><td><code>k.1</code></td><td class="n">2</td></tr>',
            "<pre>a\nb</pre>",
            'aria-label="a &quot;figure&quot;"',
            '<li><a href="#s1">first &amp; last</a></li>',
        ):
            self.assertIn(element, made)

    def test_the_policy_forbids_all_that_is_not_inside(self) -> None:
        self.assertIn(
            "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"", html_page.text(page_of())
        )

    def test_a_long_text_is_cut_and_a_long_table_is_counted(self) -> None:
        page = page_of(Paragraph("x" * 10**6), Table(("n",), [(str(n),) for n in range(10**4)]))
        for made in (markdown_page.text(page), html_page.text(page)):
            self.assertIn("9900 more rows not shown", made)
            self.assertIn("x…", made)
            self.assertLess(len(made), 20_000)

    def test_a_page_that_is_too_large_is_refused(self) -> None:
        rows = [["<" * document.MAX_TEXT_LENGTH] * 12] * document.MAX_ROWS
        with self.assertRaisesRegex(HvdbError, r"the page would have \d\.\d MB, and 2 MB is the most: report fewer"):
            html_page.text(page_of(*[Table(("x",) * 12, rows)] * 2))


class InlineSvgTest(unittest.TestCase):
    def test_ids_colours_and_fonts_are_those_of_the_page(self) -> None:
        made = html_page.embedded(SVG, "two < three", "f1-")
        self.assertEqual(
            re.sub(r">\s+<", "><", made),
            '<svg viewBox="0 0 72 36" style="max-width: 72pt" role="img" aria-label="two &lt; three"><defs /><g>'
            '<path style="fill: var(--ink); stroke: var(--paper)" id="f1-1" /><use href="#f1-1" />'
            '<g clip-path="url(#f1-2)"><text style="font: 9px \'DejaVu Sans\', Verdana, sans-serif">a &lt;b&gt;</text>'
            '</g><clipPath id="f1-2"><rect x="0" /></clipPath></g></svg>',
        )

    def test_every_ink_has_its_variable_on_the_page(self) -> None:
        inks = {figure.INK, figure.MUTED, figure.FAINT, figure.BLUE, figure.VERMILION, figure.GREEN, figure.YELLOW}
        self.assertLessEqual({ink.lower() for ink in inks}, set(html_page.COLOURS))
        for variable in html_page.COLOURS.values():
            name = variable.removeprefix("var(").removesuffix(")")
            self.assertEqual(html_page.STYLE.count(f"{name}: #"), 2, "for light and for dark pages")

    def test_two_figures_share_no_id(self) -> None:
        made = html_page.text(page_of(Figure("one", drawn), Figure("two", drawn)))
        self.assertEqual(Page(made).ids, ["s1", "f1-1", "f1-2", "f2-1", "f2-2", "s1-1"])


class StoreTest(FolderTest):
    def document(self, *options: object) -> Document:
        command = module("report")
        return command.build(command.parser().parse_args([str(self.db), *map(str, options)]))

    def section(self, title: str, *options: object) -> Section:
        sections = {section.title: section for section in self.document(*options).sections}
        self.assertIn(title, sections)
        return sections[title]

    def run_report(self, *words: object, code: int = 0) -> str:
        _, out, err = call("report", self.db, *words, code=code)
        return out + err


class SummaryTest(StoreTest):
    """Tests the table that the page begins with. Its figures must be those of the store."""

    def rows(self, *options: object) -> list[tuple[str, ...]]:
        table = self.section("Summary", *options).blocks[0]
        self.assertEqual(table.header, report.SUMMARY_HEADER)
        return list(table.rows)

    def lines(self) -> list[str]:
        return list(self.section("Summary").blocks[1].lines)

    def test_a_row_for_each_configuration_on_its_most_ranks(self) -> None:
        specs = [SessionSpec(ranks=ranks, noise=0.0) for ranks in (2, 4)]
        make(self.db, *specs, SessionSpec(model="vgg16", noise=0.0, full=1.6, batch_size=4))
        first, second = self.rows()
        loss = "exposed communication: 14.5 % [13.9, 15.1]"
        self.assertEqual(first[:3], ("ResNet-101, 4 ranks, batch 8", "80.0 [79.4, 80.6]", loss))
        self.assertEqual(second[:2], ("VGG-16, 2 ranks, batch 4", "62.5 [61.9, 63.1]"))
        self.assertEqual(self.lines(), ["Every row: fp32, cpu, static schedule over mpi. [..]: 95 % interval."])

    def test_the_page_begins_with_the_table_and_its_records_are_folded(self) -> None:
        make(self.db, SessionSpec())
        html = html_page.text(self.document())
        self.assertLess(html.index('<section id="s1" class="answer">'), html.index("<nav"))
        self.assertLess(html.index("<nav"), html.index('<section id="s2">'))
        folded = re.findall(r"<details><summary><h2>(.*?)</h2></summary>", html)
        self.assertEqual(folded, ["Provenance", "Command lines"])
        self.assertEqual(html.count("</details></section>"), 2)

    def test_what_to_try_is_the_advice_about_the_largest_loss(self) -> None:
        make(self.db, SessionSpec(phases=("full",)))
        page = self.document()
        self.assertEqual([section.title for section in page.sections[:2]], ["Summary", "What to try next"])
        (lines,) = page.sections[1].blocks
        self.assertRegex(
            lines.lines[0], r"ResNet-101 on 2 ranks \(run [0-9a-f]{8}\): there is no baseline .*--efficiency"
        )
        ((_, reached, loss, advised),) = self.rows()
        self.assertEqual((reached, loss, advised), ("no baseline", "-", "measure with --efficiency"))

    def test_a_busy_machine_and_cautions_are_named_below(self) -> None:
        facts = {"measurement.other_processors": ("1.08 of 2", 0), "caution.x": ("it is warm", 0)}
        made = make(self.db, SessionSpec(provenance=facts))
        run = made[0]["full"][:8]
        busy = f"The machine was busy: meanwhile other programs used 1.08 of 2 processors ({run})."
        self.assertEqual(self.lines()[1:], [busy, f"Caution: it is warm ({run})"])
        self.assertEqual(self.rows()[0][3], "stop other programs and measure again; the machine was busy")

    def test_a_rate_that_counts_no_images_names_its_unit(self) -> None:
        make(self.db, SessionSpec(noise=0.0, provenance={"work.unit": ("sequences", 0)}))
        _, rows, _ = tables.efficiency_table(efficiency.cells(runs.load([self.db])))
        self.assertEqual([row[6] for row in rows], ["8.00 [7.92, 8.08] sequences/s", "12.8 [12.7, 12.9] sequences/s"])

    def test_a_wide_efficiency_is_first_of_all_not_resolved(self) -> None:
        make(self.db, SessionSpec(noise=0.0), SessionSpec(model="vgg16", noise=0.0))
        efficiency = "UPDATE decomposition SET low = {}, high = {} WHERE component = 'efficiency' AND run_uuid IN"
        model = " (SELECT uuid FROM run WHERE model = '{}')"
        self.change(efficiency.format(0.464, 1.014) + model.format("resnet101"))
        self.change(efficiency.format("NULL", "NULL") + model.format("vgg16"))
        wide, none = self.rows()
        self.assertEqual(wide[1], "not resolved: between 46 and 101 %")
        self.assertEqual(none[1], "not resolved: too few rounds for an interval")
        self.assertTrue(wide[3].startswith("measure four times as long"), wide)
        page = markdown_page.text(self.document())
        self.assertIn("| efficiency | not resolved: between 46 and 101 % | 46.4 to 101.4 |", page)
        self.assertNotIn("80.0", page, "no efficiency without a useful interval")

    def test_a_bound_is_shown_only_where_it_binds(self) -> None:
        make(self.db, SessionSpec(noise=0.0), SessionSpec(model="vgg16", noise=0.0))
        cells = efficiency.cells(runs.load([self.db]))
        header, rows, notes = tables.efficiency_table(cells)
        self.assertEqual({cell.ring_bound for cell in cells}, {None, 1.0})
        self.assertNotIn("ring bound", " ".join([*header, *notes]))
        cells[-1] = replace(cells[-1], ring_bound=0.923)
        header, rows, notes = tables.efficiency_table(cells)
        self.assertEqual([row[header.index("ring bound %")] for row in rows], ["-", "100.0", "-", "92.3"])
        self.assertIn("ring bound: ", " ".join(notes))
        (run,) = (run for run in runs.load([self.db]) if run.uuid == cells[-1].run_ids[-1])
        self.assertEqual(report._reached(cells[-1], run), "80.0 [79.4, 80.6]; bound: 92.3")
        self.assertEqual(report._reached(cells[1], run), "80.0 [79.4, 80.6]")

    def test_one_rank_has_a_rate_and_its_roofline(self) -> None:
        facts = {"bound.step_seconds": ("0.5", 0)}
        one = {"ranks": 1, "phases": ("full",)}
        make(self.db, SessionSpec(**one, provenance=facts), SessionSpec(**one, model="vgg16", provenance={}))
        with_bound, without = self.rows()
        self.assertRegex(with_bound[1], r"images/s; roofline: 16\.0$")
        self.assertRegex(without[1], r"images/s$")
        self.assertTrue(without[0].startswith("VGG-16, 1 rank"), without)

    def test_nothing_to_advise(self) -> None:
        make(self.db, SessionSpec(phases=("full",), ranks=1))
        (said,) = self.section("What to try next").blocks
        self.assertIn("Nothing stands out", said.text)


class SectionsTest(StoreTest):
    def test_operations_beside_their_bounds(self) -> None:
        """2e9 operations and 1e6 bytes take 10 ms. Peaks of 1e12/s and 1e9/s give 2 and 1 ms, so the bound is 2 ms."""
        work = {"kind": "conv", "implementation": "jit", "library": 1, "flops": 2e9, "bytes": 1e6, "seconds": 0.01}
        facts = {"bound.peak_flops": ("1e12", 0), "bound.peak_bytes_per_second": ("1e9", 0)}
        operations = [{"seq": 0, "node": "layer.conv", **work}]
        make(self.db, SessionSpec(ranks=1, phases=("full",), traced=1, operations=operations, provenance=facts))
        (part,) = self.section("Time per operation").parts
        tables = [block for block in part.blocks if isinstance(block, Table)]
        self.assertEqual(tables[0].rows, [("conv", "1", "10.0", "100.0", "200 GFLOP/s", "2.00", "5.00")])
        self.assertEqual(tables[1].rows[0][:3], ("layer.conv", "conv", "jit"))
        self.assertIn("at 1 TFLOP/s and traffic at 0.001 TB/s", part.blocks[0].text)

    def test_operations_without_bounds_say_so(self) -> None:
        work = {"kind": "conv", "implementation": "jit", "library": 1, "flops": 2e9, "bytes": 1e6, "seconds": 0.01}
        make(self.db, SessionSpec(ranks=1, phases=("full",), traced=1, operations=[{"seq": 0, "node": "n", **work}]))
        (part,) = self.section("Time per operation").parts
        self.assertIn("Bounds are not known", part.blocks[0].text)
        self.assertNotIn("bound ms", part.blocks[2].header)

    def test_ranks_show_the_slowest_only(self) -> None:
        make(self.db, SessionSpec(ranks=32, ranks_per_host=8))
        (part,) = self.section("Ranks").parts
        (table,) = (block for block in part.blocks if isinstance(block, Table))
        self.assertEqual(len(table.rows), report.SHOWN_RANKS)
        self.assertIn("32 ranks on 4 nodes", part.title)

    def test_ranks_that_cannot_be_compared_say_why(self) -> None:
        make(self.db, SessionSpec(steps=5))
        (part,) = self.section("Ranks").parts
        self.assertIn("Cannot be told: 5 samples of a rank are too few", part.blocks[0].text)

    def test_memory_is_one_row_a_run(self) -> None:
        make(self.db, SessionSpec(ranks=32))
        (table,) = self.section("Memory").blocks
        self.assertEqual(
            {row[2:] for row in table.rows}, {(ranks, "0", "n1", "954", "1001", "1.05") for ranks in ("1", "32")}
        )

    def test_a_timeline_is_named_and_not_linked(self) -> None:
        make(self.db, SessionSpec(traced=1))
        command = "env X=1 mpirun -n 2 hvd_bench --timeline-filename 'javascript:alert(1)'"
        self.change("UPDATE session SET command_line = ?", command)
        made = self.folder / "a.html"
        self.run_report("-o", made)
        read = Page(made.read_text(encoding="utf-8"))
        self.assertEqual(read.faults(), [])
        self.assertIn("Timelines", read.headings)
        self.assertIn("javascript:alert(1)", read.text)
        for line in ("hvd_bench 'unfinished", "hvd_bench --model timeline-filename", ""):
            self.change("UPDATE session SET command_line = ?", line)
            self.assertNotIn("Timelines", [section.title for section in self.document().sections], line)

    def test_two_systems_are_kept_apart_and_their_differences_named(self) -> None:
        facts = {"cpu.model": ("Test CPU", 1), "git.commit": ("abc", 1), "os.load": ("0.1", 0)}
        other = facts | {"cpu.model": ("Other CPU", 1), "os.load": ("0.2", 0), "lib.new": ("1", 1)}
        specs = [SessionSpec(provenance=facts), SessionSpec(provenance=other, fingerprint="b", solo=0.9)]
        make(self.db, *specs)
        page = self.document()
        titles = [section.title for section in page.sections]
        self.assertIn("Scaling efficiency, system A", titles)
        self.assertIn("Scaling efficiency, system B", titles)
        self.assertIn("system A: Test CPU, lib.new (none); system B: Other CPU, lib.new 1.", page.lead)
        (part,) = self.section("What differs between the systems").parts
        rows = part.blocks[1].rows
        expected = [("cpu.model", "yes", "Test CPU", "Other CPU"), ("lib.new", "yes", "(none)", "1")]
        self.assertEqual(rows, [*expected, ("os.load", "", "0.1", "0.2")])

    def test_what_differs_within_a_configuration_makes_systems_too(self) -> None:
        """Runs of different commits count as different systems. Otherwise the report would pool or refuse their
        efficiencies."""
        facts = {"cpu.model": ("Test CPU", 1), "git.commit": ("abc", 1), "os.load": ("0.1", 0)}
        new = {"cpu.model": ("Test CPU", 1), "git.commit": ("def", 1), "os.load": ("0.2", 0)}
        make(
            self.db,
            SessionSpec(provenance=facts, started="2026-01-01T00:00:00Z"),
            SessionSpec(provenance=new, fingerprint="b", started="2026-01-02T00:00:00Z"),
            SessionSpec(provenance=new, fingerprint="b", model="vgg16", started="2026-01-03T00:00:00Z"),
        )
        page = self.document()
        self.assertIn("system A: Test CPU, git.commit abc; system B: Test CPU, git.commit def", page.lead)
        self.assertEqual(len(self.section("Summary").blocks[0].rows), 3)
        (part,) = self.section("What differs between the systems").parts
        self.assertEqual(part.blocks[1].rows[0], ("git.commit", "yes", "abc", "def"))
        pooled = self.document("--mix-fingerprints")
        self.assertNotIn("system", pooled.lead)
        self.assertEqual(len(self.section("Summary", "--mix-fingerprints").blocks[0].rows), 2)

    def test_another_commit_for_another_configuration_is_one_system(self) -> None:
        other = {"cpu.model": ("Test CPU", 1), "git.commit": ("def", 1)}
        make(self.db, SessionSpec(), SessionSpec(provenance=other, fingerprint="b", model="vgg16"))
        self.assertIn("on Test CPU.", self.document().lead)

    def test_more_systems_than_letters_are_refused(self) -> None:
        specs = [SessionSpec(provenance={"cpu.model": (f"CPU {n}", 1)}, fingerprint=str(n)) for n in range(9)]
        make(self.db, *specs)
        self.assertIn("the runs are of 9 systems that differ in their machines", self.run_report(code=4))

    def test_one_system_has_no_letter(self) -> None:
        make(self.db, SessionSpec())
        page = self.document()
        self.assertIn("on Test CPU.", page.lead)
        self.assertNotIn("system", " ".join(section.title for section in page.sections))

    def test_other_sessions_of_a_configuration_are_one_row_each(self) -> None:
        make(self.db, SessionSpec(started="2026-01-01T00:00:00Z"), SessionSpec(started="2026-01-02T00:00:00Z"))
        section = self.section("Where the step time goes")
        self.assertEqual(len(section.parts), 1)
        (table,) = (block for block in section.blocks if isinstance(block, Table))
        self.assertEqual(len(table.rows), 1)
        self.assertEqual(table.rows[0][2:], ("1.6", "2.0", "14.5", "0.4 ?", "-", "1.0", "0.5 ?", "80.0"))


class FileTest(StoreTest):
    """Tests which files the report writes."""

    def setUp(self) -> None:
        super().setUp()
        traced = SessionSpec(traced=1, phases=("full",), ranks=1, operations=[operation(seq) for seq in range(4)])
        make(self.db, SessionSpec(), SessionSpec(ranks=4, model="vgg16"), traced)

    def test_both_forms_say_the_same(self) -> None:
        markdown, html = self.folder / "a.text", self.folder / "a.HTML"
        said = self.run_report("-o", markdown, "-o", html)
        self.assertEqual(said, f"{markdown}\n{html}\n")
        read = Page(html.read_text(encoding="utf-8"))
        self.assertEqual(read.faults(), [])
        text = markdown.read_text(encoding="utf-8")
        self.assertEqual(text, self.run_report(), "standard output has the Markdown")
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        self.assertEqual(headings, read.headings)
        self.assertEqual(read.drawings, 3, "scaling, waterfall and a profile")

        def tables(sections: list[Section]) -> list[Table]:
            own = [block for section in sections for block in section.blocks if isinstance(block, Table)]
            return own + [table for section in sections for table in tables(section.parts)]

        for table in tables(self.document().sections):
            for row in table.rows:
                for cell in row:
                    self.assertIn(cell, read.text)

    def test_equal_input_gives_equal_files(self) -> None:
        """Each report runs in a new process, because modules that the first report imports could change the second
        report."""
        first, second = self.folder / "1.html", self.folder / "2.html"
        script = str(SCRIPTS / "report")
        subprocess.run([script, self.db, "-o", first, "-o", second], capture_output=True, check=True, timeout=HANG)
        self.assertEqual(first.read_bytes(), second.read_bytes())
        self.assertLess(first.stat().st_size, 300_000)

    def test_a_database_is_replaced_by_neither(self) -> None:
        said = self.run_report("-o", self.folder / "a.html", "-o", self.db, code=2)
        self.assertIn("is a database, which -o would replace", said)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["a.db"])


class SizeTest(unittest.TestCase):
    """Reports a study of up to 512 ranks: 9 scales x 3 networks, a slow rank in each run, marked as simulated.

    The test limits memory and file size. It only prints the time.
    """

    SCRIPT = """
import json, resource, sys, time
sys.path.insert(0, sys.argv[1])
from hvdb import cli as program
begin = time.perf_counter()
code = program.main(sys.argv[2:])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([code, time.perf_counter() - begin, peak / 1024]))
"""

    def test_512_ranks_at_9_scales_of_3_networks(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            db, page = Path(folder) / "a.db", Path(folder) / "a.html"
            base = SessionSpec(ranks_per_host=8, steps=100, slow_rank=1, origin="simulated")
            networks, powers = ("inception3", "resnet101", "vgg16"), range(1, 10)
            scales = [replace(base, ranks=2**power, full=1.1 + 0.03 * power) for power in powers]
            make(db, *(replace(scale, model=model) for model in networks for scale in scales))
            words = [sys.executable, "-B", "-c", self.SCRIPT, str(SCRIPTS), "report", str(db)]
            words += ["--origin", "simulated", "-o", str(page)]
            done = execute(*words, check=True, timeout=HANG)
            code, seconds, mib = json.loads(done.stdout.splitlines()[-1])
            size = page.stat().st_size
            text = page.read_text(encoding="utf-8")
        print(f"report of 512 ranks x 9 scales x 3 networks: {seconds:.1f} s, {mib:.0f} MiB, {size / 1e6:.2f} MB")
        self.assertEqual(code, 0)
        self.assertLessEqual(size, html_page.MAX_BYTES)
        self.assertLess(mib, 500e6 / 2**20)
        read = Page(text)
        self.assertEqual(read.faults(), [])
        self.assertEqual(len(re.findall(r"[^,]+, simulated, 512 ranks", text[: text.index("<nav")])), 3)
        self.assertEqual(read.drawings, 2 + report.MAX_HEAT_MAPS)
