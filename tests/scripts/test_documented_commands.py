"""Parses every command line of the documentation with today's parsers. Nothing is measured or read."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import shlex
import unittest
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import SCRIPTS, execute
from synthetic_store import REPOSITORY

from hvdb import commands
from hvnet import __main__ as network_bench
from maintain.peerbench import collectives, torch_peers
from validation import __main__ as validate_prediction

HVD_BENCH = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "results/README.md", "plots/README.md")]
PAGES += [REPOSITORY / "docs/recipes/README.md", REPOSITORY / "scripts/maintain/README.md"]
PAGES += sorted((REPOSITORY / "docs").glob("*.md"))
FENCED = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^ {4}(\S.*)$", re.MULTILINE)
INLINE = re.compile(r"`([^`]+)`")
PROGRAM = re.compile(r"((?:scripts|tests/testbed)/[a-z_/]+|hvdb|(?:build/\w+/bin/)?hvd_bench)")
LAUNCHERS = ("mpirun", "srun")
LACKS = re.compile("is required|are required|give one of them|required [A-Z]+ missing|needs both|the value is missing")
SHELL_SCRIPTS = ("build", "install_deps", "quickstart", "test", "maintain/benchmarks")


def command_lines(page: str) -> Iterator[tuple[list[str], bool]]:
    """Yields (words from the program on, whether the line is complete). A line in running text may lack arguments. The
    name of a program alone is no command line there."""
    page = page.replace("\\\n", " ")
    text = FENCED.sub("", page)
    lines = [(line, True) for block in FENCED.findall(page) for line in block.splitlines()]
    lines += [(line, True) for line in INDENTED.findall(text)]
    lines += [(" ".join(span.split()), False) for span in INLINE.findall(text)]
    for line, complete in lines:
        for part in line.removeprefix("$ ").split(" && "):
            with contextlib.suppress(ValueError):  # no command: an apostrophe
                words = shlex.split(re.sub(r"\[(--[^]]*)\]", r"\1", part), comments=True)
                words = [word for word in words if word != "..."]
                if words[:1] and words[0] in LAUNCHERS:
                    words = [*itertools.dropwhile(lambda word: not PROGRAM.fullmatch(word), words)]
                called = words[:1] and PROGRAM.fullmatch(words[0]) and words[1:2] != ["="]
                if called and (complete or len(words) > 1):
                    yield words, complete


def refusal(program: str, words: Sequence[str]) -> str:
    """Returns why a Python program or a shell script refuses `words`; "" if it does not."""
    script = program.removeprefix("scripts/")
    if script in SHELL_SCRIPTS:
        known = execute(SCRIPTS / script, "--help", code=0).stdout
        return "".join(f"{word} is not in its help; " for word in words if word.startswith("--") and word not in known)
    if script == "maintain/gpu_check":
        done = execute(SCRIPTS / script, *words, "--plan")
        return done.stderr if done.returncode else ""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            if script == "maintain/peers" and words[:1] == ["collectives"]:
                collectives.parser().parse_args(words[1:])
            elif script == "maintain/peers" and words:
                torch_peers.parse(words[0], words[1:])
            elif script == "tests/testbed/network_bench":
                network_bench._arguments(list(words))
            elif script == "tests/testbed/validate_prediction":
                validate_prediction.parser().parse_args(words)
            elif script in commands.COMMANDS:
                commands.module(script).parser().parse_args(words)
            elif script != "maintain/peers":
                return "there is no such script"
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


class DocumentedCommandsTest(unittest.TestCase):
    @unittest.skipUnless(HVD_BENCH.is_file(), f"the program is not built ({HVD_BENCH})")
    def test_every_command_line_is_understood(self) -> None:
        environment = {**os.environ, "HVD_MAX_CPU_ISA": "refused"}  # hvd_bench reads this after its command line
        programs = dict.fromkeys(("hvd_bench", "hvdb"), 0)
        for page in PAGES:
            for (program, *words), complete in command_lines(page.read_text(encoding="utf-8")):
                with self.subTest(page=page.relative_to(REPOSITORY), line=shlex.join([program, *words])):
                    if program.endswith("hvd_bench"):
                        why = execute(HVD_BENCH, *words, env=environment).stderr
                        understood = "HVD_MAX_CPU_ISA|cannot read the replay file"
                        self.assertRegex(why, understood if complete else rf"{understood}|{LACKS.pattern}")
                        programs["hvd_bench"] += 1
                        continue
                    if program == "hvdb":
                        program, *words = words
                    why = refusal(program, words) if program != "NAME" else ""
                    if complete or not LACKS.search(why):
                        self.assertEqual(why, "")
                    programs["hvdb"] += 1
        self.assertGreater(programs["hvdb"], 60)
        self.assertGreater(programs["hvd_bench"], 25)

    def test_a_wrong_line_is_noticed(self) -> None:
        page = (
            "`scripts/ranks --nonesuch` and `hvdb NAME`\n```\n$ mpirun -n 2 hvd_bench --x  # why\nhvd_bench = 1\n```\n"
        )
        lines = [(["hvd_bench", "--x"], True), (["scripts/ranks", "--nonesuch"], False), (["hvdb", "NAME"], False)]
        self.assertEqual(list(command_lines(page)), lines)
        self.assertIn("--nonesuch", refusal("scripts/ranks", ["a.db", "--nonesuch"]))
        self.assertIn("no such script", refusal("scripts/bench_nothing", []))
        self.assertIn("no such script", refusal("scripts/network_bench", []))
        self.assertIn("--nonesuch", refusal("scripts/build", ["--nonesuch"]))
