"""Installs hvdb with cmake --install and with pip, from a copy of the sources that is then deleted.

Every command runs in both installations, on stores that the installed hvd_bench wrote. Nothing is downloaded.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from collections.abc import Callable
from pathlib import Path

import jsonschema
from limits import HANG

from harness import execute
from synthetic_store import REPOSITORY

import hvdb
from hvdb import cli

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
SOURCES = ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "bench", "cmake", "engine", "models", "results", "scripts")
SOURCES += ("slurm",)
FAST = ["--model", "resnet50", "--image-size", "64", "--batch-size", "1", "--threads", "1", "--num-warmup-batches", "1"]
FAST += ["--num-batches-per-iter", "1", "--num-iters", "3", "--quiet"]
SPEC = """
name = "tiny"
models = ["resnet50"]
ranks = [1]
repetitions = 1
[weak]
batch_size = 1
[options]
image-size = 64
threads = 1
num-warmup-batches = 1
num-batches-per-iter = 1
num-iters = 2
"""
# This launcher drops its own option (-n RANKS) and runs the rest, because one rank needs no MPI.
LAUNCH = """launch.command=["bash", "-c", 'shift 2; exec "$@"', "-"]"""
# Prints what bash offers to complete. The first argument is the file with the completion, the rest are words.
COMPLETE = """
source "$1"
shift
COMP_WORDS=(hvdb "$@")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
function=$(complete -p hvdb | sed 's/.* -F \\([^ ]*\\) .*/\\1/')
"$function" hvdb "${COMP_WORDS[-1]}" "${COMP_WORDS[-2]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


class Installed:
    """Both installations, and the folders that the tests need, in one scratch folder."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.prefix = top / "prefix"
        self.venv = top / "venv"
        self.plain = top / "plain"  # a Python without packages, as on a login node
        self.work = top / "work"
        self.work.mkdir()
        self.store = self.work / "measured.db"
        self.other = self.work / "other.db"
        self.environment = {
            "HOME": str(self.work),
            "LC_ALL": "C.UTF-8",
            "PATH": f"{self.prefix}/bin:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(self, *words: object, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a program in self.work, like execute()."""
        return execute(*words, code=code, cwd=self.work, env={**self.environment, **environment}, timeout=HANG)

    def install(self) -> None:
        """Installs from a copy of the sources, which is deleted afterwards."""
        source, build, wheels = self.top / "source", self.top / "build", self.top / "wheels"
        source.mkdir()
        ignored = shutil.ignore_patterns("__pycache__", "recorded")
        for name in SOURCES:
            path = REPOSITORY / name
            if path.is_dir():
                shutil.copytree(path, source / name, ignore=ignored)
            else:
                shutil.copy(path, source / name)
        options = ("-DHVD_BUILD_TESTS=OFF", "-DHVD_BUILD_MICROBENCH=OFF", "-DHVD_WITH_CUDA=OFF")
        as_on_fedora = "-DCMAKE_INSTALL_LIBDIR=lib64"
        self.run("cmake", "-S", source, "--preset", "release", "-B", build, *options, as_on_fedora)
        (build / "bin").mkdir(exist_ok=True)
        shutil.copy(PROGRAM, build / "bin" / "hvd_bench")  # saves a build of the program under test
        if (modules := PROGRAM.parents[1] / "lib" / "hvd_bench").is_dir():  # through which it calls MPI
            shutil.copytree(modules, build / "lib" / "hvd_bench", dirs_exist_ok=True)
        self.run("cmake", "--install", build, "--prefix", self.prefix, "--component", "program")
        self.run(sys.executable, "-m", "venv", "--system-site-packages", self.venv)
        self.run(sys.executable, "-m", "venv", "--without-pip", self.plain)
        pip = (self.venv / "bin" / "pip", "--quiet", "--disable-pip-version-check", "--no-input")
        offline = ("--no-index", "--no-deps", "--no-build-isolation")
        self.run(*pip, "wheel", *offline, "--wheel-dir", wheels, source / "scripts")
        (self.wheel,) = wheels.glob("*.whl")
        self.run(*pip, "install", *offline, self.wheel)
        shutil.rmtree(source)
        shutil.rmtree(build)


def setUpModule() -> None:
    missing = [name for name in ("hatchling", "ensurepip", "shtab") if importlib.util.find_spec(name) is None]
    if missing:
        raise AssertionError(
            f"{sys.executable} has no {', '.join(missing)}: run scripts/install_deps "
            "(Debian: apt-get install python3-hatchling python3-venv python3-shtab)"
        )
    if not PROGRAM.is_file():
        raise AssertionError(f"there is no program at {PROGRAM}: set HVD_BENCH")
    global HERE
    scratch = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(scratch.cleanup)
    HERE = Installed(Path(scratch.name).resolve())
    HERE.install()
    HERE.run("hvd_bench", *FAST, "--ranks", "2", "--efficiency", "--db", HERE.store)
    HERE.run("hvd_bench", *FAST, "--profile", "--db", HERE.store)
    HERE.run("hvd_bench", *FAST, "--ranks", "2", "--efficiency", "--db", HERE.other)


def in_both(check: Callable[[unittest.TestCase, Path, Path], None]) -> Callable[[unittest.TestCase], None]:
    """Makes a test that calls check(test case, path of hvdb, empty folder) for each of the two installations."""

    @functools.wraps(check)
    def test(case: unittest.TestCase) -> None:
        for place in (HERE.prefix, HERE.venv):
            with case.subTest(place.name), tempfile.TemporaryDirectory(dir=HERE.work) as folder:
                check(case, place / "bin" / "hvdb", Path(folder))

    return test


class ProgramTest(unittest.TestCase):
    """The program as installed below a prefix, after its build is gone."""

    def test_it_finds_its_modules_for_mpi(self) -> None:
        if not (PROGRAM.parents[1] / "lib" / "hvd_bench").is_dir():
            self.skipTest("needs the modules for MPI")
        said = HERE.run("hvd_bench", "doctor", code=None).stdout
        self.assertNotIn("the module that calls it could not be loaded", said)
        self.assertRegex(said, r"ok +MPI ")


class CommandTest(unittest.TestCase):
    """Tests each command as installed below a prefix and in a virtual environment."""

    def test_every_command_has_a_test(self) -> None:
        for command in cli.COMMANDS:
            self.assertTrue(hasattr(self, f"test_{command}"), command)

    @in_both
    def test_efficiency(self, hvdb: Path, _: Path) -> None:
        table = HERE.run(hvdb, "efficiency", HERE.store).stdout
        self.assertRegex(table, r"ResNet-50 .* static +2 ")
        document = json.loads(HERE.run(hvdb, "efficiency", HERE.store, "--json").stdout)
        self.assertEqual([cell["ranks"] for cell in document["cells"]], [1, 2])
        self.assertIn("usage: hvdb efficiency ", HERE.run(hvdb, "efficiency", "--help").stdout)
        missing = HERE.run(hvdb, "efficiency", "no.db", code=2)
        self.assertEqual(missing.stderr, "hvdb efficiency: no.db: no such file\n")

    @in_both
    def test_ranks(self, hvdb: Path, _: Path) -> None:
        said = HERE.run(hvdb, "ranks", HERE.store, "--phase", "none", code=3)
        self.assertIn("3 samples", said.stdout + said.stderr)

    @in_both
    def test_gate(self, hvdb: Path, folder: Path) -> None:
        cell = " ".join(word for word in FAST if word != "--quiet")
        words = ["--b", "--seed 2", "--cell", cell, "--pairs", "6", "--threshold", "99", "--db", folder / "gate.db"]
        said = HERE.run(hvdb, "gate", *words, "--dry-run").stderr
        self.assertIn("at most 6 pairs, 12 runs of at most 5 s each", said)
        # On a busy machine, one of the six pairs may have one run that takes twice as long as the other. The
        # verdict is then INCONCLUSIVE.
        gated = HERE.run(hvdb, "gate", *words, "--json", folder / "v.json", code=None)
        verdict = {0: "PASS", 3: "INCONCLUSIVE"}[gated.returncode]
        self.assertRegex(gated.stdout, rf"cell-1 .* 6 pairs +{verdict}")
        again = HERE.run(hvdb, "compare", folder / "gate.db", code=gated.returncode).stdout
        self.assertIn(gated.stdout.split("\n\n")[0], again)
        installed = next(hvdb.parents[1].rglob("verdict.schema.json"))
        jsonschema.validate(json.loads((folder / "v.json").read_text()), json.loads(installed.read_text()))

    @in_both
    def test_compare(self, hvdb: Path, _: Path) -> None:
        said = HERE.run(hvdb, "compare", HERE.store, HERE.other, code=3).stdout
        self.assertRegex(said, r"resnet50, .* 1 \+ 1 +INCONCLUSIVE")

    @in_both
    def test_history(self, hvdb: Path, folder: Path) -> None:
        said = HERE.run(hvdb, "history", HERE.store, "--new", HERE.other, "--json", folder / "h.json", code=3).stdout
        self.assertRegex(said, r"resnet50, .* INCONCLUSIVE\n")
        self.assertIn("1 earlier session, and a verdict needs 18 more", said)
        installed = next(hvdb.parents[1].rglob("history.schema.json"))
        jsonschema.validate(json.loads((folder / "h.json").read_text()), json.loads(installed.read_text()))

    @in_both
    def test_plot(self, hvdb: Path, folder: Path) -> None:
        drawn = HERE.run(hvdb, "plot", HERE.store, "--out", folder, "--format", "svg").stdout.splitlines()
        names = ["profile_resnet50.svg", "scaling.svg", "waterfall.svg"]
        self.assertEqual(sorted(drawn), [str(folder / name) for name in names])
        for file in drawn:
            self.assertIn("<svg", Path(file).read_text(encoding="utf-8"))

    @in_both
    def test_collectives(self, hvdb: Path, folder: Path) -> None:
        words = "coll --ranks 2 -b 4K -e 4K --warm --max-time 0.01"
        HERE.run("hvd_bench", *words.split(), "-J", folder / "coll.json")
        drawn = HERE.run(hvdb, "collectives", folder / "coll.json", "--out", folder, "--format", "svg").stdout
        self.assertEqual(drawn, f"{folder / 'all_reduce.svg'}\n")
        self.assertIn("<svg", (folder / "all_reduce.svg").read_text(encoding="utf-8"))

    @in_both
    def test_predict(self, hvdb: Path, folder: Path) -> None:
        HERE.run("hvd_bench", *FAST, "--record-replay", folder / "a.replay", "--no-db")
        words = (HERE.store, "--profile", folder / "a.replay", "--ranks", "2")
        said = HERE.run(hvdb, "predict", *words, code=3).stderr
        self.assertRegex(said, r"^hvdb predict: session \w+ has \d+ steps of each phase, and 20 are needed\n$")

    @in_both
    def test_merge(self, hvdb: Path, folder: Path) -> None:
        said = HERE.run(hvdb, "merge", "-o", folder / "all.db", HERE.store).stdout
        self.assertIn("all.db: 4 runs added, 0 were there already", said)
        HERE.run(hvdb, "efficiency", folder / "all.db")

    @in_both
    def test_report(self, hvdb: Path, folder: Path) -> None:
        HERE.run(hvdb, "report", HERE.store, "-o", folder / "page", "-o", folder / "page.html")
        page = (folder / "page").read_text(encoding="utf-8")
        self.assertIn("## Where the step time goes", page)
        self.assertIn("<svg ", (folder / "page.html").read_text(encoding="utf-8"))

    @in_both
    def test_export(self, hvdb: Path, folder: Path) -> None:
        HERE.run(hvdb, "export", HERE.store, "--prometheus", folder / "a.prom", "--jsonl", folder / "a.jsonl")
        self.assertIn('\nhvd_bench_step_seconds{model="resnet50",ranks="2",', (folder / "a.prom").read_text())
        self.assertEqual(len((folder / "a.jsonl").read_text().splitlines()), 4)

    @in_both
    def test_rerun(self, hvdb: Path, folder: Path) -> None:
        run = json.loads(HERE.run(hvdb, "efficiency", HERE.store, "--json").stdout)["cells"][1]["run_ids"][0]
        done = HERE.run(hvdb, "rerun", run, HERE.store, "--execute", "--db", folder / "again.db").stdout
        self.assertIn(f"runs: {HERE.prefix}/bin/hvd_bench --model=resnet50 ", done)
        self.assertRegex(done, r"ratio now / then: \d")
        self.assertTrue((folder / "again.db").exists())

    @in_both
    def test_reproduce(self, hvdb: Path, _: Path) -> None:
        alone = HERE.run(hvdb, "reproduce", "horovod-512", code=3).stdout
        self.assertIn("  hvdb campaign generate horovod-512 --site slurm-4gpu --dry-run ", alone)
        self.assertRegex(alone, r"VGG-16 +512 +68 .* not measured here")
        self.assertIn("left out: recorded runs: there are none here; give your stores with --db", alone)
        words = re.search(r"^  hvdb (campaign generate .*--dry-run)", alone, re.MULTILINE)[1].split()
        self.assertIn("n0128", HERE.run(hvdb, *words).stdout)
        own = HERE.run(hvdb, "reproduce", "horovod-512", "--db", HERE.store, "--device", "cpu", code=3).stdout
        self.assertNotIn("there are none here", own)

    @in_both
    def test_campaign(self, hvdb: Path, folder: Path) -> None:
        (folder / "tiny.toml").write_text(SPEC, encoding="utf-8")
        study = folder / "study"
        words = ("campaign", "generate", folder / "tiny.toml", "--site", "laptop", "--set", LAUNCH)
        made = HERE.run(hvdb, *words, "--out", study).stdout
        self.assertIn(f"next: hvdb campaign submit {study}", made)
        self.assertIn("done", HERE.run(hvdb, "campaign", "submit", study).stdout)
        standing = HERE.run(hvdb, "campaign", "status", study).stdout
        self.assertIn(f"complete; next: hvdb merge -o tiny.db {study}/stores/*.db", standing)
        self.assertIn("nothing to hand in", HERE.run(hvdb, "campaign", "resume", study).stdout)
        HERE.run(hvdb, "merge", "-o", folder / "tiny.db", study / "stores")
        relative = HERE.run(hvdb, *words, "--set", "program.hvd_bench=bin/x", "--out", folder / "other", code=2)
        self.assertIn("bin/x starts at a checkout, and hvdb campaign is installed without one", relative.stderr)

    @in_both
    def test_completion(self, hvdb: Path, folder: Path) -> None:
        text = HERE.run(hvdb, "completion", "bash").stdout
        (HERE.work / "completion").write_text(text, encoding="utf-8")
        self.assertEqual(text.strip(), (HERE.prefix / "share/bash-completion/completions/hvdb").read_text().strip())
        for name in ("a.db", "b.db"):
            (folder / name).touch()
        (folder / "figures").mkdir()

        def offered(*words: object) -> list[str]:
            shown = HERE.run("bash", "-c", COMPLETE, "-", HERE.work / "completion", *words).stdout
            return sorted(word for word in shown.splitlines() if word)

        self.assertEqual(offered(""), sorted(cli.COMMANDS))
        self.assertEqual(offered("re"), ["report", "reproduce", "rerun"])
        self.assertEqual(offered("efficiency", "--m"), ["--mix-fingerprints", "--model"])
        self.assertEqual(offered("efficiency", "--origin", ""), ["measured", "simulated"])
        self.assertEqual(offered("merge", "-o", f"{folder}/a"), [f"{folder}/a.db"])
        self.assertEqual(offered("efficiency", f"{folder}/a.db", f"{folder}/b"), [f"{folder}/b.db"])
        self.assertEqual(offered("plot", "--out", f"{folder}/"), [f"{folder}/figures"])
        self.assertEqual(offered("campaign", "s"), ["status", "submit"])
        self.assertEqual(offered("campaign", "status", "--j"), ["--json"])
        self.assertTrue((HERE.prefix / "share/zsh/site-functions/_hvdb").read_text().startswith("#compdef hvdb"))
        self.assertIn("complete hvdb", HERE.run(hvdb, "completion", "tcsh").stdout)

    @in_both
    def test_no_command_and_an_unknown_one(self, hvdb: Path, _: Path) -> None:
        for command in cli.COMMANDS:
            self.assertIn(f"\n  {command} ", HERE.run(hvdb, "--help").stdout)
        self.assertIn("COMMAND", HERE.run(hvdb, code=2).stderr)
        unknown = HERE.run(hvdb, "efficency", code=2)
        self.assertRegex(unknown.stderr, r"^hvdb: there is no command 'efficency'; commands: efficiency, .*\n$")


class FilesTest(unittest.TestCase):
    def test_both_have_the_same_files_and_nothing_else(self) -> None:
        package = HERE.prefix / "share/hvd_bench/python/hvdb"
        below = {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.is_file()}
        inside = {name for name in zipfile.ZipFile(HERE.wheel).namelist() if name.startswith("hvdb/")}
        self.assertEqual(below, inside)
        self.assertEqual({Path(name).suffix for name in inside if "/data/" not in name}, {".py"})
        folders = {path.name for path in package.rglob("*") if path.is_dir()}
        self.assertEqual(
            folders,
            {"base", "campaign", "commands", "data", "ddp", "judge", "predict", "pytorch", "read", "run", "show"}
            | {"sites", "specs", "steps"},
        )

    def test_hvd_bench_has_the_recorded_steps_that_ship(self) -> None:
        words = ("--replay-shrink", "4096", "--num-warmup-batches", "1", "--num-iters", "1", "--no-db")
        for name in ("gpt2", "llama"):
            self.assertIn(f"  replaying  {name}-div4096", HERE.run("hvd_bench", "--replay", name, *words).stdout)

    def test_a_program_of_pytorch_can_import_what_needs_it(self) -> None:
        """No package is needed but PyTorch, and that only when the functions are called."""
        modules = "from hvdb.torch_profile import record; from hvdb.torch_efficiency import measure"
        words = ("-S", "-c", f"{modules}; print(record.__name__, measure.__name__)")
        for folder in (HERE.prefix / "share/hvd_bench/python", next(HERE.venv.glob("lib/python3*/site-packages"))):
            said = HERE.run(HERE.plain / "bin" / "python", *words, PYTHONPATH=str(folder)).stdout
            self.assertEqual(said, "record measure\n")

    def test_one_version(self) -> None:
        version = hvdb.__version__
        self.assertTrue(HERE.wheel.name.startswith(f"hvdb-{version}-"), HERE.wheel.name)
        for place in (HERE.prefix, HERE.venv):
            self.assertEqual(HERE.run(place / "bin" / "hvdb", "--version").stdout, f"hvdb {version}\n")


class LauncherTest(unittest.TestCase):
    def test_links_and_a_prefix_that_is_moved(self) -> None:
        moved = HERE.top / "moved here"
        shutil.copytree(HERE.prefix, moved, symlinks=True)
        self.addCleanup(shutil.rmtree, moved)
        link = HERE.work / "hvdb-link"
        link.symlink_to(moved / "bin" / "hvdb")
        self.addCleanup(link.unlink)
        self.assertIn("ResNet-50", HERE.run(link, "efficiency", HERE.store).stdout)
        made = HERE.work / "moved"
        HERE.run(link, "campaign", "generate", "laptop", "--site", "laptop", "--out", made)
        self.addCleanup(shutil.rmtree, made)
        script = next((made / "jobs").glob("*.sh")).read_text(encoding="utf-8")
        self.assertIn(f"\nhvd_bench='{moved}/bin/hvd_bench'\n", script)

    def test_without_hvd_bench_it_says_how_to_name_one(self) -> None:
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        hvdb = HERE.venv / "bin" / "hvdb"
        words = ("campaign", "generate", "laptop", "--site", "laptop", "--out", HERE.work / "nowhere")
        done = HERE.run(hvdb, *words, code=2, PATH=path)
        self.assertIn(
            "no hvd_bench beside hvdb campaign or on the PATH; name the one that jobs run: --set", done.stderr
        )
        run = json.loads(HERE.run(hvdb, "efficiency", HERE.store, "--json").stdout)["cells"][1]["run_ids"][0]
        done = HERE.run(hvdb, "rerun", run, HERE.store, "--execute", code=2, PATH=path)
        self.assertIn("no hvd_bench beside hvdb rerun or on the PATH: build or install it, or name one", done.stderr)

    def test_nothing_in_the_current_folder_is_imported(self) -> None:
        """Files in the current folder may have come with a stranger's store."""
        for place in (HERE.prefix, HERE.venv):
            with self.subTest(place.name), tempfile.TemporaryDirectory(dir=HERE.work) as folder:
                for name in ("hvdb", "numpy", "json", "types", "runpy", "shtab"):
                    Path(folder, f"{name}.py").write_text("raise SystemExit('a stranger runs here')\n")
                done = HERE.run("env", "-C", folder, place / "bin" / "hvdb", "efficiency", HERE.store)
                self.assertIn("ResNet-50", done.stdout)

    def test_a_login_node_has_python_alone(self) -> None:
        """Without numpy, hvdb campaign works. The other commands name the missing package in one line."""
        python = HERE.plain / "bin" / "python"
        words = (HERE.prefix / "bin" / "hvdb", "campaign", "generate", "horovod-512", "--site", "slurm-8gpu")
        self.assertIn("n0064", HERE.run(*words, "--dry-run", HVD_PYTHON=str(python)).stdout)
        package = str(HERE.prefix / "share/hvd_bench/python")
        lacking = HERE.run(python, "-m", "hvdb", "efficiency", HERE.store, code=2, PYTHONPATH=package)
        self.assertRegex(lacking.stderr, r"^hvdb efficiency: Python \S+ \(.*\) has no module numpy: .*\n$")
        lacking = HERE.run(python, "-m", "hvdb", "completion", "bash", code=2, PYTHONPATH=package)
        self.assertRegex(lacking.stderr, r"^hvdb completion: needs shtab: apt-get install python3-shtab.*\n$")

    def test_without_a_good_python_it_says_what_to_install(self) -> None:
        library = HERE.prefix / "share/hvd_bench/python/lib/python.sh"
        asked = f"source {library}; hvd_python_is_good() {{ false; }}; hvd_exec efficiency"
        done = HERE.run("bash", "-c", asked, code=2)
        self.assertRegex(done.stderr, r"^no Python 3.10\+ with numpy and matplotlib was found: install them .*\n$")
