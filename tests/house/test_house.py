"""Checks that this repository breaks no rule, and that each rule finds a violation."""

from __future__ import annotations

import os
import re
import subprocess
import unittest
from pathlib import Path

import rules

ROOT = Path(__file__).resolve().parents[2]
SELF = "tests/house/test_house.py"  # this file contains violations on purpose


def repository_files() -> list[str]:
    """Returns the files that git tracks or would add. Without git, returns all files except build output."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode == 0:
        names = listed.stdout.splitlines()
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    return sorted(name for name in names if not name.startswith(("build/", ".git/")) and (ROOT / name).is_file())


class RepositoryTest(unittest.TestCase):
    def test_the_rules_hold(self) -> None:
        names = repository_files()
        self.assertGreater(sum(name.endswith((".cpp", ".h")) for name in names), 50, "the repository was not found")
        texts = [(name, rules.read_text(ROOT / name)) for name in names if name != SELF]
        violations = rules.violations([(n, t) for n, t in texts if t is not None], lambda name: (ROOT / name).exists())
        self.assertEqual(violations, [], "\n" + "\n".join(map(str, violations)))

    def test_rooms_are_small(self) -> None:
        violations = rules.check_folders(repository_files())
        self.assertEqual(violations, [], "\n" + "\n".join(map(str, violations)))

    def test_python_modules_import_along_the_arrows(self) -> None:
        modules = {}
        for name in repository_files():
            if name.startswith(("scripts/", "tests/testbed/")) and name.endswith(".py"):
                below = name.removeprefix("scripts/").removeprefix("tests/testbed/")
                dotted = below.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
                modules[dotted] = (ROOT / name).read_text(encoding="utf-8")
        self.assertIn("hvdb.read.store", modules)
        violations = rules.check_python(modules)
        self.assertEqual(violations, [], "\n" + "\n".join(map(str, violations)))

    def test_every_layer_that_exists_has_arrows(self) -> None:
        for top in ("engine", "bench", "models/cudnn"):
            folders = {f"{top}/{p.name}" for p in (ROOT / top).iterdir() if p.is_dir()}
            self.assertLessEqual(folders, set(rules.ARROWS))
        packages = {f"hvdb.{p.parent.name}" for p in (ROOT / "scripts/hvdb").glob("*/*.py")}
        self.assertEqual(packages, set(rules.PYTHON_ARROWS))

    def test_every_source_lies_in_a_layer(self) -> None:
        sources = [n for n in repository_files() if n.startswith(("engine/", "models/", "bench/"))]
        loose = [n for n in sources if n.endswith(rules.CPP) and rules.layer_of(n) is None]
        self.assertEqual(loose, [], "move these files into the folder of a target")

    def test_every_script_for_maintainers_has_its_line(self) -> None:
        folder = "scripts/maintain/"
        entries = {n[len(folder) :].split("/")[0] for n in repository_files() if n.startswith(folder)}
        lines = (ROOT / folder / "README.md").read_text(encoding="utf-8").splitlines()
        first_cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
        named = re.findall(r"`([^`]+)`", " ".join(first_cells))
        self.assertEqual(sorted(named), sorted(entries - {"README.md", "__init__.py"}))

    def test_every_option_in_the_readme_is_in_the_help(self) -> None:
        readme = ROOT / "README.md"
        program = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
        if not readme.exists() or not program.is_file():
            self.skipTest(f"needs README.md and {program}")
        named = rules.options_named(readme.read_text(encoding="utf-8"))
        helps = [[str(program), "--help"], [str(program), "doctor", "--help"], [str(program), "train", "--help"]]
        helps.append([str(program), "validate", "--help"])
        scripts = "efficiency plot ranks gate compare history merge rerun report test quickstart install_deps"
        helps += [[str(ROOT / "scripts" / name), "--help"] for name in scripts.split()]
        known = " ".join(
            subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout for command in helps
        )
        known_options = set(re.findall(r"--[a-z][\w-]*", known))
        self.assertEqual(named - known_options, set(), "the README names options that no --help knows")


class RulesTest(unittest.TestCase):
    def assert_found(self, violations: list[rules.Violation], text: str) -> None:
        self.assertEqual(len(violations), 1, violations)
        self.assertIn(text, str(violations[0]))

    def test_algorithms(self) -> None:
        for text in (
            "#include <algorithm>\nauto x = std::count(a, b, c);\n",
            "// std::count(a, b, c)\nstd::maximum y; my::sort(a); std::remove(path);\n",
        ):
            self.assertEqual(rules.check_algorithm("tests/a.cpp", text), [])
        for name, call in (
            ("count", "std::count(a, b, 1)"),
            ("equal", "std::equal(a, b, c)"),
            ("sort", "std::ranges::sort(a)"),
            ("max", "std::max(a, b)"),
            ("min", "std::min<std::vector<int>::size_type>(1, b)"),
        ):
            violations = rules.check_algorithm("tests/a.cpp", f"#include <vector>\nauto x = {call};\n")
            self.assert_found(violations, f"tests/a.cpp:2: std::{name} needs #include <algorithm>")

    def test_layers(self) -> None:
        allowed = [
            ("bench/train/a.cpp", '#include "engine/runtime/engine.h"\n#include "models/zoo/zoo.h"\n'),
            ("bench/store/a.cpp", '#include "bench/measure/median.h"\n'),
            ("bench/cli/a.cpp", '#include "bench/coll/options.h"\n#include "bench/measure/units.h"\n'),
            ("engine/runtime/a.h", '#include "engine/core/fusion.h"\n#include "engine/comm/communicator.h"\n'),
            ("models/graph/a.h", '#include "engine/base/types.h"\n#include <vector>\n'),
            ("tests/core/a.cpp", '#include "bench/world/options.h"\n'),
        ]
        for path, text in allowed:
            self.assertEqual(rules.check_layers(path, text), [])
        forbidden = {
            "models/graph/a.h": "engine/core/fusion.h",
            "models/a.cpp": "engine/runtime/engine.h engine/comm/communicator.h",
            "engine/core/a.h": "engine/comm/communicator.h",
            "engine/comm/a.h": "engine/core/fusion.h",
            "engine/base/a.h": "engine/gpu/device.h",
            "engine/runtime/a.h": "models/graph/graph.h bench/world/options.h",
            "bench/measure/a.h": "bench/store/run_record.h models/train_step.h",
            "bench/store/a.cpp": "bench/world/setup.h bench/coll/record.h bench/cli/launch.h engine/runtime/engine.h",
            "bench/train/a.h": "bench/coll/options.h bench/session/session.h bench/tune/crossovers.h",
            "bench/coll/b.cpp": "bench/session/session.h bench/train/trainer.h",
            "models/cudnn/plan/a.h": "models/cudnn/run/executor.h",
            "models/graph/b.h": "models/cudnn/plan/plan.h tests/models/reference/ops.h",
            "bench/coll/a.cpp": "bench/cli/console.h",
            "bench/peers/a.cpp": "bench/store/run_record.h",
        }
        for path, headers in forbidden.items():
            for header in headers.split():
                self.assert_found(rules.check_layers(path, f'\n#include "{header}"\n'), f"{path}:2:")
        self.assert_found(
            rules.check_layers("bench/cli/a.cpp", '#include "options.h"\n'), "by their path from the root"
        )

    def test_headers_that_a_folder_must_not_reach(self) -> None:
        texts = {
            "bench/world/options.h": '#include "bench/world/ranks.h"\n',
            "bench/world/ranks.h": "#include <chrono>\n",
            "bench/session/a.cpp": '#include "bench/world/options.h"\n',
            "bench/coll/a.h": '#include "bench/world/ranks.h"\n',
        }
        self.assertEqual(rules.check_reach(texts), [])
        direct = texts | {"bench/coll/b.cpp": '\n#include "bench/world/options.h"\n'}
        self.assert_found(
            rules.check_reach(direct), "bench/coll/b.cpp:2: bench/coll may not include bench/world/options.h"
        )
        through = texts | {"bench/world/ranks.h": '#include "bench/world/options.h"\n'}
        self.assert_found(rules.check_reach(through), "options.h through bench/world/ranks.h")

    def test_vendor_headers(self) -> None:
        self.assert_found(rules.check_vendor_headers("bench/a.cpp", "#include <mpi.h>\n"), "engine/comm/mpi/")
        self.assert_found(rules.check_vendor_headers("models/a.cpp", "#include <oneapi/dnnl/dnnl.hpp>\n"), "onednn")
        self.assert_found(rules.check_vendor_headers("models/a.cpp", "#include <cuda_runtime_api.h>\n"), "engine/gpu/")
        self.assert_found(rules.check_vendor_headers("engine/base/a.h", "#include <sqlite3.h>\n"), "bench/")
        self.assertEqual(rules.check_vendor_headers("engine/comm/mpi/a.h", "#include <mpi.h>\n"), [])
        device = '#include "engine/comm/device_communicator.h"\n'
        self.assert_found(rules.check_vendor_headers("engine/runtime/engine_impl.h", device), "engine/runtime/device_")
        self.assertEqual(rules.check_vendor_headers("engine/runtime/device_watch.h", device), [])

    def test_purity(self) -> None:
        self.assert_found(rules.check_purity("engine/core/a.h", "#include <mutex>\n"), "<mutex>")
        self.assert_found(rules.check_purity("engine/sim/a.cpp", "#include <random>\n"), "<random>")
        self.assert_found(
            rules.check_purity("engine/core/a.cpp", "auto t = std::chrono::steady_clock::now();"), "steady_clock"
        )
        self.assertEqual(rules.check_purity("engine/core/a.h", "// no steady_clock::now() here\n"), [])
        self.assertEqual(rules.check_purity("engine/comm/a.h", "#include <mutex>\n"), [])

    def test_environment(self) -> None:
        self.assert_found(rules.check_environment("engine/runtime/a.cpp", 'auto x = std::getenv("X");'), "getenv")
        for path in ("bench/cli/a.cpp", "bench/store/provenance.cpp", "bench/store/host_facts.cpp", "bench/train/a.h"):
            self.assert_found(rules.check_environment(path, 'auto x = std::getenv("X");'), f"{path}:1: ")
        self.assertEqual(rules.check_environment("bench/cli/main.cpp", "for (char** e = environ; *e;) {}"), [])
        self.assertEqual(rules.check_environment("engine/runtime/a.cpp", 'say("getenv(");'), [])

    def test_exit(self) -> None:
        for call in ("exit(1);", "std::abort();", "  _exit(2);", "std::terminate();", "::exit(0);"):
            self.assert_found(rules.check_no_exit("engine/comm/a.cpp", f"void f() {{ {call} }}"), "only main()")
        for harmless in ("engine.abort(why);", "peer->abort(why);", "// exit(1)", 'say("exit(1)");', "on_exit(1);"):
            self.assertEqual(rules.check_no_exit("engine/comm/a.cpp", f"void f() {{ {harmless} }}"), [], harmless)
        self.assertEqual(rules.check_no_exit("bench/cli/main.cpp", "int main() { std::exit(1); }"), [])

    def test_size(self) -> None:
        line = "int x;  // why\n"
        self.assertEqual(rules.check_size("a.cpp", line * 450), [])
        self.assert_found(rules.check_size("a.cpp", line * 451), "451 lines")
        self.assertEqual(rules.check_size("a.py", "x = 1\n" * 600 + "\n# comment\n" * 500), [])
        self.assert_found(rules.check_size("a.py", "x = 1\n" * 601), "601 lines")
        for name, first_line in (("scripts/a", "#!/bin/sh\n"), ("scripts/a.sh", ""), ("cmake/a.cmake", "")):
            violations = rules.violations([(name, first_line + "x=1\n" * 601)], lambda _: True)
            self.assert_found(violations, "601 lines")
        self.assertEqual(rules.violations([("LICENSE", "words\n" * 601)], lambda _: True), [])

    def test_folders(self) -> None:
        self.assertEqual(rules.check_folders([f"a/{i}.cpp" for i in range(40)] + ["a/b/c.cpp", "a/CMakeLists.txt"]), [])
        self.assert_found(rules.check_folders([f"a/b/{i}.py" for i in range(41)]), "a/b:1: 41 files")

    def test_python_imports(self) -> None:
        good = {
            "hvdb.base.a": "",
            "hvdb.read.b": "import os\nfrom hvdb.base import a\n",
            "hvdb.cli": "import hvdb.read.b",
        }
        self.assertEqual(rules.check_python(good), [])
        up = {"hvdb.show.a": "", "hvdb.read.b": "def f():\n    from hvdb.show import a\n"}
        self.assert_found(rules.check_python(up), "hvdb.read.b:2: hvdb.read may not import hvdb.show.a")
        relative = {"hvdb.show.a": "", "hvdb.read.b": "from ..show import a\n"}
        self.assert_found(rules.check_python(relative), "hvdb.read.b:1: hvdb.read may not import hvdb.show.a")
        opens = {"hvdb.base.sqlite": "import sqlite3", "hvdb.read.b": "x = 1\nimport sqlite3"}
        self.assert_found(rules.check_python(opens), "hvdb.read.b:2: import sqlite3: hvdb.base.sqlite chooses")
        beside = {"m.p": "", "m.p.a": "from . import b", "m.p.b": "from .a import x"}
        self.assert_found(rules.check_python(beside), "a circle of imports: m.p.a -> m.p.b")
        turn = {"hvdb.read.a": "from hvdb.read.b import x", "hvdb.read.b": "from hvdb.read import a"}
        self.assert_found(rules.check_python(turn), "a circle of imports: hvdb.read.a -> hvdb.read.b")

    def test_references(self) -> None:
        here = {"docs/page.md", "README.md"}.__contains__
        self.assertEqual(
            rules.check_references("docs/a.md", "see page.md and docs/page.md, README.md, build/x/report.md", here), []
        )
        self.assertEqual(rules.check_references("a.md", "https://example.com/x/other.md", here), [])
        self.assert_found(rules.check_references("engine/a.h", "// see ../notes/PLAN.md", here), "PLAN.md")
        self.assert_found(rules.check_references("a.sh", "cd /root/me/src", here), "one machine")
        self.assertEqual(rules.check_references("a.sh", 'cd "$top"/work/me', here), [])

    def test_options_named(self) -> None:
        page = (
            "`--model vgg16`\n\n    mpirun --bind-to core -n 2 hvd_bench --batch-size 8\n"
            "    cmake --preset release\n| `--db` | store |\n"
        )
        self.assertEqual(rules.options_named(page), {"--model", "--batch-size", "--db"})


if __name__ == "__main__":
    unittest.main()
