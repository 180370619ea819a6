"""Tests a stranger's store. Terminals, Markdown and plots must show the store's texts as plain text. No text may become
the path of a file."""

from __future__ import annotations

import json
import re
import unittest
from pathlib import Path

from html_check import Page

from harness import FolderTest, alter, call
from synthetic_store import SessionSpec, make, operation

from hvdb.base import printable
from hvdb.base.errors import HvdbError

# Parts of this text move the cursor, set the terminal's title, end a line and a table cell, begin HTML, code and a
# formula, and reverse the direction of text.
HOSTILE = (
    "\x1b[2J\x1b]0;t\x07\r\na|b<script>x</script>```~~c~~ *d* __e__ $\\frac$ $\x9b\u202e[f](http://g.h) @i/../../j"
)
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")
OPERATIONS = [operation(seq, node=HOSTILE, kind=f"{HOSTILE}{seq}", implementation=HOSTILE) for seq in range(3)]


class HostileStore(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        traced = SessionSpec(traced=1, phases=("full",), operations=OPERATIONS)
        self.ids = make(self.db, SessionSpec(), SessionSpec(ranks=4, steps=5), traced)
        columns = "model compute_type allreduce_type comm data_plane stop_reason checks started_utc status_reason"
        self.change(f"UPDATE run SET {', '.join(f'{name} = :text' for name in columns.split())}")
        self.change("UPDATE session SET command_line = :text, started_utc = :text")
        self.change("UPDATE provenance SET value = :text")
        self.change("UPDATE provenance SET key = :text || key")
        self.change("UPDATE rank SET host = :text")

    def change(self, sql: str) -> None:
        alter(self.db, sql, values={"text": HOSTILE})

    def run_script(self, *words: object, code: int = 0) -> str:
        """Runs a command of hvdb. Returns its output, which must contain no control characters of terminals."""
        _, out, err = call(*words, code=code)
        self.assertNotRegex(out + err, CONTROLS)
        return out + err

    def test_a_table_is_one_line_a_row(self) -> None:
        lines = self.run_script("efficiency", self.db).splitlines()
        self.assertEqual([line[:14] for line in lines[2:5]], ["\\x1b[2J\\x1b]0;"] * 3)

    def test_a_refusal_is_one_line(self) -> None:
        self.db = self.folder / "two.db"
        make(self.db, SessionSpec(), SessionSpec(fingerprint="b"))
        self.change("UPDATE run SET model = :text")
        self.change("UPDATE provenance SET value = :text || run_uuid")
        self.assertEqual(self.run_script("efficiency", self.db, code=4).count("\n"), 1)
        self.assertEqual(self.run_script("efficiency", self.db, "--model", HOSTILE[:9], code=2).count("\n"), 1)

    def test_markdown_shows_the_text_and_no_more(self) -> None:
        page = self.run_script("report", self.db)
        table = [line for line in page.splitlines() if line.startswith("|")]
        self.assertGreater(len(table), 20)
        for line in table:
            bars = re.findall(r"(?<!\\)\|", re.sub(r"\\\\", "", line))
            self.assertIn(len(bars), (4, 5, 6, 7, 8, 9, 11, 12, 13), line)
        self.assertEqual(page.count("<script"), page.count("````\n\\x1b[2J"), "in the block of code only")
        prose, block = page.split("## Command lines\n\n")
        for markup in ("```", "~~", " *d", "__e", "](", "://", "$\\", "@"):
            self.assertNotIn(markup, prose.replace(f"\\{markup[0]}", ""), markup)
        self.assertRegex(block, r"^````\n[^\n]*\n````\n$")

    def test_html_holds_only_what_its_writer_makes(self) -> None:
        page = self.folder / "page.html"
        self.run_script("report", self.db, "-o", page)
        text = page.read_text(encoding="utf-8")
        self.assertNotRegex(text, CONTROLS)
        read = Page(text)
        self.assertEqual(read.faults(), [])
        self.assertGreater(read.text.count("<script>x</script>"), 20, "shown as text")
        self.assertEqual(read.drawings, 3)

    def test_plots_show_formulas_as_text_and_lie_in_their_folder(self) -> None:
        """matplotlib cannot draw the formula `$\\frac$`. The model's name is part of file names and must not lead
        out of the folder."""
        out = self.folder / "deep" / "plots"
        said = self.run_script("plot", self.db, "--out", out)
        self.assertEqual(said.count("plots/profile_"), 1)
        names = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        self.assertEqual(names[0], "a.db")
        self.assertRegex(names[1], r"^deep/plots/profile_[A-Za-z0-9_-]+\.png$")
        self.assertEqual(names[2:], ["deep/plots/scaling.png", "deep/plots/waterfall.png"])

    def test_a_history_shows_names_reasons_and_dates(self) -> None:
        self.db = self.folder / "two.db"
        ids = make(self.db, SessionSpec(), SessionSpec(started="2026-02", fingerprint="b"))
        self.change("UPDATE run SET model = :text, started_utc = :text || started_utc")
        self.change("UPDATE provenance SET value = :text || run_uuid")
        annotations = self.folder / "expected.toml"
        reason = json.dumps(HOSTILE, ensure_ascii=False)
        annotations.write_text(f'[[expected]]\nsince = "{ids[1]["full"]}"\nreason = {reason}\n', encoding="utf-8")
        words = ("history", self.db, "--annotations", annotations, "--json", self.folder / "h.json")
        said = self.run_script(*words, "--plot", self.folder / "h.svg", code=3)
        shown = "\\x1b[2J\\x1b]0;t\\x07\\r\\na|b<script>"
        self.assertIn(f"  expected since {ids[1]['full']}: {shown}", said)
        self.assertIn(f"  a new series: cpu.model: '{shown}", said)
        (_, series) = json.loads((self.folder / "h.json").read_text())["series"]
        self.assertEqual(series["expected"][0]["reason"], HOSTILE)
        self.assertNotIn("<script", (self.folder / "h.svg").read_text())
        annotations.write_text(f"[[expected]]\n{reason} = 1\n", encoding="utf-8")
        self.assertEqual(self.run_script(*words, code=2).count("\n"), 1)

    def test_rerun_shows_the_record(self) -> None:
        said = self.run_script("rerun", self.ids[0]["full"], self.db)
        self.assertIn("command: \\x1b[2J\\x1b]0;t\\x07\\r\\na|b<script>", said)

    def test_the_name_of_a_file_is_text_too(self) -> None:
        folder = self.folder / "\x1b[2J"
        folder.mkdir()
        other = folder / "b\n.db"
        make(other, SessionSpec(), seed=2)
        self.assertIn("\\x1b[2J/b\\n.db: 7 runs added", self.run_script("merge", "-o", other, self.db))
        (folder / "c.db").write_text("no database")
        said = self.run_script("merge", "-o", folder / "d.db", other, folder / "c.db", "--skip-damaged")
        self.assertIn("left out: ", said)
        self.assertIn("\\x1b[2J/report\\n", self.run_script("report", other, "-o", folder / "report\n"))
        said = self.run_script("efficiency", folder / "c.db", code=2)
        self.assertEqual(said.count("\n"), 1)


class Printable(unittest.TestCase):
    """Compares the printable form of texts with texts that are written by hand."""

    def test_terminal(self) -> None:
        self.assertEqual(
            printable.terminal("caf\u00e9 \x1b\n\t\x00\x9b\u202e\u2028\udcff"),
            "caf\u00e9 \\x1b\\n\\t\\x00\\x9b\\u202e\\u2028\\xff",
        )
        self.assertEqual(printable.terminal(Path("/a/b")), "/a/b")

    def test_markdown(self) -> None:
        for text, shown in (
            ("lib_a.so v_1", "lib_a.so v_1"),
            ("_a_ __b__ *c*", "\\_a\\_ \\_\\_b\\_\\_ \\*c\\*"),
            ("a|b\\|c`d`", "a\\|b\\\\\\|c\\`d\\`"),
            ("<b> &amp; [x](y) ~~z~~ $e$", "&lt;b&gt; &amp;amp; \\[x\\](y) \\~\\~z\\~\\~ \\$e\\$"),
            ("http://a www.b c@d", "http&#58;//a www&#46;b c&#64;d"),
        ):
            self.assertEqual(printable.markdown(text), shown)

    def test_code(self) -> None:
        self.assertEqual(printable.code("lib.file.dnnl"), "`lib.file.dnnl`")
        self.assertEqual(printable.code("a`b|c"), "a\\`b\\|c")
        self.assertEqual(printable.code_block(["a ``` b", "c\nd"]), ["````", "a ``` b", "c\\nd", "````"])

    def test_label(self) -> None:
        self.assertEqual(printable.label("$a$\n"), "\\$a\\$\\n")
        self.assertEqual(len(printable.label("x" * 1000)), 120)

    def test_file_in(self) -> None:
        out = Path("out")
        self.assertEqual(printable.file_in(out, "profile_", "vgg16", ".png"), out / "profile_vgg16.png")
        made = {printable.file_in(out, "p_", text, ".png") for text in ("a/b", "a.b", "a\0b", "..", "", "x" * 9999)}
        self.assertEqual({path.parent for path in made}, {out})
        self.assertEqual(len(made), 6)
        self.assertLess(max(len(path.name) for path in made), 100)
        with self.assertRaises(HvdbError):
            printable.file_in(out, "../p_", "vgg16", ".png")
