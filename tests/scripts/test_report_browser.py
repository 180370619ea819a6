"""Opens the HTML report in Chromium: what it shows in light and dark, that it loads nothing, and that it fits."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import unittest
from pathlib import Path

from html_check import Page
from test_hostile_text import HOSTILE

from harness import SharedFolderTest, call, execute
from synthetic_store import SessionSpec, make, operation

from hvdb.show import figure

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--disable-background-networking --disable-component-update --disable-sync --disable-extensions "
    "--enable-logging=stderr --allow-file-access-from-files"
).split()
# Chromium resolves no host name. Anything that a page loads from elsewhere fails and shows on the console.
OPTIONS.append("--host-resolver-rules=MAP * ~NOTFOUND")
LIGHT, DARK = "--blink-settings=preferredColorScheme=1", "--blink-settings=preferredColorScheme=0"
# This page contains the report and measures it at several widths, because the report itself cannot run a script.
HARNESS = """<!DOCTYPE html><meta charset="utf-8"><body><script>
const seen = [];
async function look(width) {
  const frame = document.createElement("iframe");
  frame.width = width; frame.height = 900; frame.src = REPORT;
  document.body.append(frame);
  await new Promise(loaded => frame.onload = loaded);
  const page = frame.contentDocument, root = page.documentElement, style = frame.contentWindow.getComputedStyle;
  const text = page.querySelector("svg text");
  seen.push({width, full: root.scrollWidth, height: root.scrollHeight,
    headings: [...page.querySelectorAll("h2")].map(h => h.textContent),
    paper: style(page.body).backgroundColor, ink: style(page.body).color,
    drawn: text ? style(text).fill : "", scripts: page.scripts.length,
    narrow: [...page.querySelectorAll("section > p, section > ul, h2, h3")].filter(
      e => e.getBoundingClientRect().right > width).length});
  frame.remove();
}
(async () => { for (const width of [400, 1280]) await look(width);
  document.body.textContent = "SEEN" + JSON.stringify(seen) + "END"; })();
</script></body>"""


def luminance(colour: str) -> float:
    """Returns the relative luminance (WCAG 2) of a colour like "rgb(1, 2, 3)"."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(colour: str, other: str) -> float:
    dark, light = sorted((luminance(colour), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@unittest.skipUnless(CHROMIUM, "needs chromium (scripts/install_deps --tests)")
class BrowserTest(SharedFolderTest):
    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.page = cls.folder / "report.html"
        operations = [operation(seq, kind=("conv", "relu")[seq % 2]) for seq in range(30)]
        specs = [SessionSpec(ranks=ranks, model=model) for model in ("resnet101", "vgg16") for ranks in (2, 16)]
        make(cls.db, *specs, SessionSpec(traced=1, phases=("full",), ranks=1, operations=operations))
        call("report", cls.db, "-o", cls.page, code=0)
        cls.harness = cls.folder / "harness.html"
        cls.harness.write_text(HARNESS.replace("REPORT", json.dumps(cls.page.as_uri())), encoding="utf-8")

    def chromium(self, page: Path, *options: str) -> tuple[str, list[str]]:
        """Runs Chromium. Returns its output (the page, with --dump-dom) and the messages on its console."""
        profile = self.folder / "profile"
        words = [*OPTIONS, f"--user-data-dir={profile}", *options, page.as_uri()]
        done = execute(CHROMIUM, *words, code=0, env=os.environ | {"HOME": str(self.folder)})
        return done.stdout, re.findall(r"CONSOLE.*", done.stderr)

    def look(self, scheme: str) -> list[dict]:
        shown, console = self.chromium(self.harness, scheme, "--virtual-time-budget=20000", "--dump-dom")
        self.assertEqual(console, [])
        match = re.search("SEEN(.*)END", shown)
        self.assertIsNotNone(match, shown[-500:])
        return json.loads(html.unescape(match[1]))

    def test_it_fits_and_is_readable_in_light_and_in_dark(self) -> None:
        for scheme, is_dark in ((LIGHT, False), (DARK, True)):
            for seen in self.look(scheme):
                with self.subTest(scheme=scheme, width=seen["width"]):
                    self.assertLessEqual(seen["full"], seen["width"], "the page scrolls sideways")
                    self.assertEqual(seen["narrow"], 0, "text beyond the right edge")
                    self.assertEqual(seen["scripts"], 0)
                    self.assertEqual(luminance(seen["paper"]) < 0.1, is_dark)
                    for text in (seen["ink"], seen["drawn"]):
                        self.assertGreaterEqual(contrast(text, seen["paper"]), 7, text)

    def test_all_sections_are_there_and_the_browser_changes_none(self) -> None:
        """A browser repairs wrong HTML. If the browser's page equals the written HTML, the HTML was not wrong."""
        shown, console = self.chromium(self.page, "--dump-dom")
        self.assertEqual(console, [])
        written, held = Page(self.page.read_text(encoding="utf-8")), Page(shown)
        self.assertEqual(held.faults(), [])
        self.assertEqual(held.headings, written.headings)
        self.assertEqual(held.ids, written.ids)
        self.assertEqual(held.text.split(), written.text.split())
        self.assertIn("What to try next", held.headings)

    def test_the_picture(self) -> None:
        for scheme, dark in ((LIGHT, False), (DARK, True)):
            picture = self.folder / "picture.png"
            self.chromium(self.page, scheme, "--window-size=1280,2400", f"--screenshot={picture}")
            pixels = figure.plt.imread(picture)[..., :3]
            self.assertEqual(pixels.shape, (2400, 1280, 3))
            self.assertEqual(float(pixels.mean()) < 0.4, dark)
            self.assertLess(float(pixels.min()) if dark else 1 - float(pixels.max()), 0.1)
            colours = {tuple(colour) for colour in pixels[::2, ::2].reshape(-1, 3).tolist()}
            self.assertGreater(len(colours), 100, "figures are drawn in colour, with smooth edges")

    def test_the_policy_stops_what_a_mistake_would_let_through(self) -> None:
        """For each violation of the policy, Chromium must print a message on its console. In the other tests the
        console stays empty."""
        for element in (
            '<img src="http://example.org/a.png">',
            "<script>console.log(1)</script>",
            "<img src='data:,' onerror='console.log(1)'>",
            '<link rel="stylesheet" href="http://example.org/a.css">',
        ):
            bad = self.folder / "bad.html"
            bad.write_text(self.page.read_text(encoding="utf-8").replace("<main>", f"<main>{element}"), "utf-8")
            (said,) = self.chromium(bad, "--dump-dom")[1]
            self.assertIn("Content Security Policy", said)

    def test_a_store_of_a_stranger_runs_nothing(self) -> None:
        db, page = self.folder / "b.db", self.folder / "b.html"
        facts = {"cpu.model": (HOSTILE, 1), "<img src=x onerror=console.log(1)>": ("javascript:console.log(2)", 1)}
        make(db, SessionSpec(model=f"{HOSTILE}<script>console.log(3)</script>", provenance=facts))
        call("report", db, "-o", page, code=0)
        shown, console = self.chromium(page, "--dump-dom")
        self.assertEqual(console, [])
        self.assertEqual(Page(shown).faults(), [])


class ContrastTest(unittest.TestCase):
    def test_contrast_by_hand(self) -> None:
        """The contrast of black on white is 21, of grey #767676 on white 4.54 (WCAG 2)."""
        self.assertAlmostEqual(contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)"), 21)
        self.assertAlmostEqual(contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)"), 4.54, places=2)
