"""Runs the steps of .github/actions/gate as GitHub does, in a repository of somebody else's library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import unittest
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from harness import SCRIPTS, FolderTest, executable, execute
from synthetic_store import REPOSITORY

try:
    import yaml
except ModuleNotFoundError:
    raise unittest.SkipTest("needs PyYAML") from None

ACTION = REPOSITORY / ".github" / "actions" / "gate"
RECIPES = REPOSITORY / "docs" / "recipes" / "ci"
DECLARED = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))

# A wrapper of an MPI library. `hvd_bench coll --algorithm mpi` calls MPI_Iallreduce. A reduction takes some 20 us, so
# the sleep is nearly all of its time, and three times the sleep is three times the time on a busy machine too.
WRAPPER = """#include <mpi.h>
#include <time.h>
int MPI_Iallreduce(const void *in, void *out, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm, MPI_Request *made) {
  const struct timespec pause = {0, %d * 1000000L};
  nanosleep(&pause, NULL);
  return PMPI_Iallreduce(in, out, n, type, op, comm, made);
}
"""
BUILD = 'mkdir lib && mpicc -shared -fPIC -o lib/libmine.so mine.c && echo "built $(cat note)"'


@dataclass
class Done:
    """What a run of the action left. code: of the step that failed, else 0. outputs: of the action."""

    code: int = 0
    log: str = ""
    summary: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


class ActionTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.repository = self.folder / "theirs"
        self.repository.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        return execute("git", *who, *words, cwd=self.repository, code=0).stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.repository / name.replace("_c", ".c")).write_text(text)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "work")
        return self.git("rev-parse", "HEAD")

    def action(
        self, *, until: str = "measure", event: str = "", variables: dict[str, str] | None = None, **given: str
    ) -> Done:
        """Runs the action's steps up to the step `until`. Steps that use other actions do nothing: no cache is found.

        event: the base of the pull request. variables: of the whole job. given: inputs, with _ for -.
        """
        inputs = {name.replace("_", "-"): value for name, value in given.items()}
        assert inputs.keys() <= DECLARED["inputs"].keys(), inputs
        known = {f"inputs.{name}": inputs.get(name, "") for name in DECLARED["inputs"]}
        known["github.event.pull_request.base.sha"] = event
        done = Done()
        for step in DECLARED["runs"]["steps"]:
            settings = {
                name: re.sub(r"\$\{\{ ([\w.-]+) \}\}", lambda found, known=known: known[found[1]], text)
                for name, text in (step.get("env") or step["with"]).items()
            }
            if "uses" in step:
                self.assertTrue(all(settings.values()), settings)
                continue
            ran, output = self.step(step["run"], settings | (variables or {}))
            known |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in output.items()}
            done.log += ran.stdout
            done.code = ran.returncode
            if done.code or f'gate.sh" {until}' in step["run"]:
                break
        done.summary = (self.folder / "summary").read_text()
        for name, output in DECLARED["outputs"].items():
            done.outputs[name] = known.get(output["value"].strip("${} "), "")
        return done

    def step(self, script: str, variables: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], dict[str, str]]:
        """Runs the script of a step. Returns how it ended, and its outputs."""
        output, summary = self.folder / "output", self.folder / "summary"
        output.write_text("")
        summary.touch()
        environment = {name: text for name, text in os.environ.items() if not name.startswith(("OMPI_", "GITHUB_"))}
        environment |= {"GITHUB_ACTIONS": "true", "GITHUB_ACTION_PATH": str(ACTION), "RUNNER_TEMP": str(self.folder)}
        environment |= {"GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary)}
        shell = ("bash", "--noprofile", "--norc", "-eo", "pipefail", executable(self.folder / "step", script))
        both = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        ran = execute(*shell, cwd=self.repository, env=environment | variables, **both)
        return ran, dict(line.split("=", 1) for line in output.read_text().splitlines())

    def fails(self, message: str, **options: Any) -> None:
        """The action must fail with one annotation that matches `message`."""
        done = self.action(**options)
        said = [line for line in done.log.splitlines() if line.startswith("::error")]
        self.assertEqual((done.code, len(said)), (2, 1), done.log)
        self.assertRegex(said[0], f"^::error title=gate::.*{message}")


@unittest.skipUnless(os.environ.get("HVD_BENCH"), "needs HVD_BENCH, a built hvd_bench")
@unittest.skipUnless(shutil.which("mpicc") and shutil.which("mpirun"), "needs mpicc and mpirun")
class LibraryTest(ActionTest):
    def gate(self, **inputs: str) -> Done:
        usual = {
            "build": BUILD,
            "b": "LD_PRELOAD={checkout}/lib/libmine.so",
            "launch": "mpirun -n 2",
            "cells": "\nar=coll -b 1K -e 1K --algorithm mpi --max-time 0.05\n",
            "threshold": "50",
            "time_limit": "60",
        }
        return self.action(**usual | inputs)

    def test_a_slower_library_is_a_regression_and_an_equal_one_is_not(self) -> None:
        self.commit(mine_c=WRAPPER % 4, note="first")
        self.commit(note="second")
        done = self.gate()
        self.assertEqual(done.code, 0, done.log)
        self.assertIn(done.outputs["verdict"], ("PASS", "INCONCLUSIVE"))
        self.assertEqual(done.outputs["exit-code"], "0")
        base = self.commit(note="third")
        self.git("checkout", "-q", "-b", "work")
        self.commit(mine_c=WRAPPER % 12, note="slow")
        done = self.gate(base="main")
        self.assertEqual(done.outputs["verdict"], "REGRESSION", done.log)
        self.assertEqual((done.code, done.outputs["exit-code"]), (1, "1"))
        table = r"\n\n\| cell .*\n\|.*\n\| ar all_reduce float 1024 \|"
        self.assertRegex(done.summary, rf"### gate: REGRESSION \(1 REGRESSION\){table}")
        self.assertIn("::error title=gate%3A REGRESSION%3A ar all_reduce float 1024::", done.log)
        self.assertRegex(done.log, "(?s)built third.*built slow")
        results = sorted(path.name for path in Path(done.outputs["results"]).iterdir())
        self.assertLessEqual({"gate.db", "gate.json", "gate.xml", "table"}, set(results))
        done = self.gate(base=base, cells="x=coll --nonsense")
        self.assertEqual((done.code, done.outputs["verdict"]), (2, "ERROR"), done.log)
        self.assertIn("no verdict (exit code 2)", done.summary)
        self.assertIn(f"base: the build of {base} is kept", done.log)
        self.assertNotIn("built", done.log.replace("the build", ""))


class StepsTest(ActionTest):
    """Their program is a script that prints the time in the file "us" of its commit."""

    BUILD = 'printf "#!/bin/sh\\necho Latency: $(cat us) us\\n" >{checkout}/bench && chmod +x "$GATE_CHECKOUT/bench"'
    USUAL: ClassVar = {
        "build": BUILD,
        "b": "{checkout}/bench",
        "tool": "command",
        "metric": "us=Latency: ([0-9.]+)",
        "variables": {"HVD_BENCH": "none, and none is needed"},
    }

    def setUp(self) -> None:
        super().setUp()
        self.first, self.second = self.commit(us="10"), self.commit(us="20")

    def bench(self, **changed: Any) -> Done:
        return self.action(**self.USUAL | changed)

    def test_a_slower_program(self) -> None:
        done = self.bench()
        self.assertEqual((done.code, done.outputs["verdict"]), (1, "REGRESSION"), done.log)
        self.assertRegex(done.summary, r"\| us \| 10\.0\d* us \| 20\.0\d* us \|")
        done = self.bench(a="{checkout}/bench and no more", base="HEAD", higher_is_better="us\n\n")
        self.assertEqual((done.code, done.outputs["verdict"]), (0, "PASS"), done.log)

    def test_inconclusive_is_no_fault_unless_somebody_asks(self) -> None:
        self.commit(us="$(if test -e x; then rm x; echo 8; else touch x; echo 30; fi)")
        for asked, code in (("", 0), ("inconclusive", 3)):
            done = self.bench(fail_on=asked)
            self.assertEqual((done.code, done.outputs["verdict"]), (code, "INCONCLUSIVE"), done.log)
            self.assertIn(f"::{'warning' if asked else 'notice'} title=gate%3A INCONCLUSIVE%3A us::", done.log)

    def test_a_kept_build_is_used_only_for_an_equal_build(self) -> None:
        new, kept = f"base: building {self.first}", f"base: the build of {self.first} is kept"
        for said, changed in (
            (new, {}),
            (kept, {}),
            (new, {"build": f"true; {self.BUILD}"}),
            (new, {"cache_key": "gcc 14"}),
        ):
            done = self.bench(until="prepare", **changed)
            self.assertEqual(done.code, 0, done.log)
            self.assertIn(said, done.log)
        folder = self.folder / "hvd-gate" / "kept" / "a"
        self.assertEqual({path.name for path in folder.iterdir()}, {self.first, f"{self.first}.built"})

    def test_the_steps_elsewhere_than_on_github(self) -> None:
        folder = self.folder / "elsewhere"
        given = {f"GATE_{name.upper()}": text for name, text in self.USUAL.items() if name != "variables"}
        given |= {"GATE_FOLDER": str(folder), "GITHUB_ACTIONS": "", "HVD_BENCH": "none"}
        options = {"cwd": self.repository, "env": {**os.environ, **given}}
        done = execute(ACTION / "gate.sh", "plan", "prepare", "measure", code=1, **options)
        self.assertIn("gate: REGRESSION (1 REGRESSION)", done.stdout)
        self.assertNotIn("::", done.stdout + done.stderr)
        self.assertEqual(len(list(folder.glob("results.*/gate.xml"))), 1, "where the recipe of GitLab looks for it")
        (folder / "plan").unlink()
        for words, message in ((["measure"], "plan: is missing"), (["mesure"], "'mesure' is no step")):
            said = execute(ACTION / "gate.sh", *words, code=2, **options).stderr
            self.assertRegex(said, f"^gate.sh: .*{message}.*\n$")

    def test_what_is_the_base(self) -> None:
        self.git("checkout", "-q", "-b", "work", self.first)
        self.commit(mine="1")
        work = self.commit(mine="2")
        merged = self.git("commit-tree", "-p", self.second, "-p", work, "-m", "GitHub's", f"{work}^{{tree}}")
        self.git("update-ref", "refs/remotes/origin/elsewhere", self.second)
        for head, options, base in (
            (work, {}, f"{work}^"),
            (work, {"event": self.second}, self.first),
            (merged, {"event": self.first, "variables": {"GITHUB_SHA": merged}}, self.second),
            (work, {"event": self.second, "base": "main"}, self.second),
            (work, {"base": "elsewhere"}, self.second),
        ):
            with self.subTest(options):
                self.git("checkout", "-q", head)
                log = self.action(until="plan", build="true", b="{checkout}", **options).log
                self.assertIn(f"A is {self.git('rev-parse', base)}, B is {head}", log)

    def test_a_wheel_is_installed_without_what_it_depends_on(self) -> None:
        wheel, info = self.folder / "hvd_bench-9-py3-none-any.whl", "hvd_bench-9.dist-info"
        program = zipfile.ZipInfo("hvd_bench-9.data/scripts/hvd_bench")
        program.external_attr = 0o100755 << 16  # a regular file, else pip takes no program from it
        with zipfile.ZipFile(wheel, "w") as made:
            made.writestr(program, "#!python\nprint('from the wheel')\n")
            made.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: hvd_bench\nVersion: 9\nRequires-Dist: hvdb\n"
            )
            made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            made.writestr(f"{info}/RECORD", "")
        words = {"variables": {"HVD_BENCH": "", "PATH": f"/usr/bin:{os.environ['PATH']}"}, "wheel_url": str(wheel)}
        done = self.bench(**words, tool="", metric="", cells="coll", b="X={checkout}", time_limit="1")
        self.assertIn("ended with exit code 0 and stored no run", done.log)
        said = execute(self.folder / "hvd-gate" / "venv" / "bin" / "hvd_bench", code=0).stdout
        self.assertEqual(said, "from the wheel\n")
        (self.folder / "text.whl").write_text("no wheel")
        done = self.bench(**words | {"wheel_url": str(self.folder / "text.whl")}, until="prepare")
        self.assertRegex(done.log, "::error title=gate::wheel-url: '.*/text.whl' cannot be installed")

    def test_bad_input(self) -> None:
        blank = self.folder / "a folder"
        for changed, message in (
            ({"b": ""}, r"b: names no \{checkout\}; give the side"),
            ({"b": "bench"}, r"b: names no \{checkout\}"),
            ({"build": ""}, "build: is missing"),
            ({"base": "none\n::error::%"}, r"base: this clone has no commit 'none\?::error::%25'; .*fetch-depth: 0"),
            ({"base": "--help"}, "base: this clone has no commit '--help'"),
            ({"event": self.second, "base": self.first[:-1] + "g"}, "base: this clone has no commit"),
            ({"build": "exit 7"}, f"build: failed with exit code 7 at the base, commit {self.first}"),
            ({"build": f"{self.BUILD}; test $(cat us) = 10"}, "exit code 1 at the head, commit"),
            ({"variables": {"GATE_FOLDER": str(blank)}}, "a folder: may have no blanks and quotes"),
            ({"fail_on": "nothing"}, r"no verdict \(exit code 2\)"),
            ({"cells": "--model vgg16"}, r"no verdict \(exit code 2\)"),
        ):
            with self.subTest(changed):
                self.fails(message, **self.USUAL | changed)
        shutil.rmtree(self.repository / ".git")
        self.fails("theirs is in no git repository", **self.USUAL)


class TextsTest(unittest.TestCase):
    """What the action and the recipes say, beside what they do."""

    def test_no_input_becomes_text_of_a_script(self) -> None:
        steps = [step for step in DECLARED["runs"]["steps"] if "run" in step]
        self.assertEqual(len(steps), 3)
        for step in steps:
            self.assertRegex(step["run"], r'^"\$GITHUB_ACTION_PATH/gate\.sh" (plan|prepare|measure)$')
        handed = {name: value for step in steps for name, value in step["env"].items()}
        named = {f"GATE_{name.upper().replace('-', '_')}": f"${{{{ inputs.{name} }}}}" for name in DECLARED["inputs"]}
        self.assertLessEqual(named.items(), handed.items())

    def recipes(self) -> list[dict[str, str]]:
        """Returns the inputs of the action in the recipes, by the names of their variables."""
        github = yaml.safe_load((RECIPES / "library-github.yml").read_text(encoding="utf-8"))
        (step,) = (step for step in github["jobs"]["gate"]["steps"] if "/.github/actions/gate@" in step["uses"])
        gitlab = yaml.safe_load((RECIPES / "library-gitlab.yml").read_text(encoding="utf-8"))["performance gate"]
        variables = {
            name: value["value"] if isinstance(value, dict) else value
            for name, value in gitlab["variables"].items()
            if name.startswith("GATE_") and name not in ("GATE_FOLDER", "GATE_BASE")
        }
        return [{f"GATE_{name.upper().replace('-', '_')}": text for name, text in step["with"].items()}, variables]

    def test_both_recipes_give_the_same_gate_and_it_can_run(self) -> None:
        github, gitlab = self.recipes()
        self.assertEqual(github, gitlab)
        known = {f"GATE_{name.upper().replace('-', '_')}" for name in DECLARED["inputs"]}
        self.assertLessEqual(github.keys(), known)
        words = [f"--cell={line}" for line in github["GATE_CELLS"].splitlines()]
        words += ["--b", github["GATE_B"].replace("{checkout}", "/x"), "--launch", github["GATE_LAUNCH"]]
        words += ["--threshold", github.get("GATE_THRESHOLD", "2"), "--db", "none.db", "--dry-run"]
        environment = {**os.environ, "HVD_BENCH": "hvd_bench"}
        self.assertIn("cell ", execute(SCRIPTS / "gate", *words, code=0, env=environment).stderr)

    def test_the_recipe_of_gitlab_runs_the_steps(self) -> None:
        job = yaml.safe_load((RECIPES / "library-gitlab.yml").read_text(encoding="utf-8"))["performance gate"]
        (call,) = (line for line in job["script"] if "gate.sh" in line)
        self.assertRegex(call, r"/\.github/actions/gate/gate\.sh plan prepare measure$")
        self.assertIn("{checkout}", job["variables"]["GATE_BUILD"], "GitLab would replace $GATE_CHECKOUT by nothing")
        self.assertTrue(job["artifacts"]["reports"]["junit"].endswith("/gate.xml"))


if __name__ == "__main__":
    unittest.main()
