"""Tests how the text of a side of a gate becomes a command, and how the program of a commit is built."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from limits import HANG

from harness import FolderTest, executable, execute
from synthetic_store import REPOSITORY

from hvdb.base.errors import HvdbError
from hvdb.run import side_command


class SideTest(unittest.TestCase):
    def test_the_parts_of_a_side(self) -> None:
        side = side_command.parse("OMP_NUM_THREADS=2 X='a b' module:onednn/3.7 /bin/true --seed 2", "--a")
        self.assertEqual(side.variables, {"OMP_NUM_THREADS": "2", "X": "a b"})
        self.assertEqual((side.modules, side.program), (("onednn/3.7",), Path("/bin/true")))
        self.assertEqual(side.options, ("--seed", "2"))
        self.assertEqual(side, side_command.parse(side.text, "--a"))
        words = side_command.in_surroundings(side_command.Side("", {"X": "a b"}), ["hvd_bench"])
        self.assertEqual(words, ["env", "X=a b", "hvd_bench"], "behind a launcher, on every node")

    def test_no_shell_reads_words_behind_a_module(self) -> None:
        side = side_command.Side("", modules=("x; touch bad", "y"))
        words = side_command.in_surroundings(side, ["hvd_bench", "$(touch bad)"])
        with tempfile.TemporaryDirectory() as folder:
            loaded = Path(folder, "loaded")
            executable(Path(folder, "hvd_bench"), f'#!/bin/sh\necho "$1" >>{loaded}\n')
            Path(folder, ".bash_profile").write_text(f'PATH={folder}:$PATH\nmodule() {{ echo "$*" >>{loaded}; }}\n')
            subprocess.run(words, check=True, cwd=folder, env={**os.environ, "HOME": folder}, timeout=HANG)
            self.assertEqual(loaded.read_text().splitlines(), ["load x; touch bad y", "$(touch bad)"])
            self.assertFalse(Path(folder, "bad").exists())


class CommitTest(FolderTest):
    """Builds commits of a repository whose scripts/build makes a program that prints the number of its commit."""

    GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
    BUILD = """#!/bin/sh
        cd "$(dirname "$0")/.." && mkdir -p build/release/bin && cp tool build/release/bin/hvd_bench &&
        git rev-parse HEAD >>build/recorded
    """

    def setUp(self) -> None:
        super().setUp()
        if not shutil.which("git"):
            self.skipTest("needs git")
        self.enterContext(mock.patch.dict(os.environ))
        for name in side_command._OF_REPOSITORY:  # these tests may run in a hook
            os.environ.pop(name, None)
        self.clone = self.folder / "clone"
        self.clone.mkdir()
        self.enterContext(contextlib.chdir(self.clone))
        self.git("init", "-q", "-b", "main")
        executable(Path("scripts/build"), self.BUILD)
        for number in ("1", "2"):
            executable(Path("tool"), f"#!/bin/sh\necho {number}\n")
            self.commit(number)

    def git(self, *words: object) -> str:
        return execute(*self.GIT, *words, code=0).stdout.strip()

    def commit(self, message: str) -> None:
        self.git("add", "-A", ":!trees")
        self.git("commit", "-qm", message)

    def build(self, name: str) -> Path:
        return side_command.built(side_command.parse(f"commit:{name}", "--b"), Path("trees"))

    def refused(self, name: str, pattern: str) -> None:
        with self.assertRaisesRegex(HvdbError, pattern) as raised:
            self.build(name)
        self.assertNotIn("\n", str(raised.exception))

    def test_a_commit_is_built_in_a_worktree_of_its_own(self) -> None:
        for name, answer in (("main~1", "1\n"), ("main", "2\n"), ("main~1", "1\n")):
            self.assertEqual(execute(self.build(name), code=0).stdout, answer)
        executable(Path("scripts/build"), "#!/bin/sh\nexit 3\n")
        self.commit("broken")
        self.refused("main", "commit:[0-9a-f]{40}: scripts/build .* exit code 3; see trees/")

    def test_a_hook_builds_the_commit_and_not_its_own_checkout(self) -> None:
        index = self.clone / ".git" / "index"
        before = index.read_bytes()
        os.environ |= {"GIT_DIR": str(index.parent), "GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(self.clone)}
        tree = self.build("main~1").parents[3]
        self.assertEqual((tree / "build" / "recorded").read_text().split(), [tree.name])
        self.assertEqual(index.read_bytes(), before, "git worktree add would write the worktree's files into it")

    def test_a_worktree_of_another_clone_is_refused(self) -> None:
        self.build("main")
        self.git("clone", "-q", ".", "../other")
        Path("trees").rename("../other/trees")
        with contextlib.chdir("../other"):
            self.refused("main", "trees/[0-9a-f]{40} is not a .* worktree of .*/other/.git at this commit; remove the")
            shutil.rmtree("trees")
            tree = self.build("main").parents[3]
            (tree / "tool").write_text("edited")
            self.refused("main", "not a whole and unchanged worktree")
            (tree / ".git").unlink()
            self.refused("main", "not a whole and unchanged worktree")

    def test_a_commit_that_a_clone_lacks_can_be_fetched(self) -> None:
        self.git("checkout", "-qb", "change")
        self.git("clone", "-q", "--depth=1", f"file://{self.clone.resolve()}", "../shallow")
        with contextlib.chdir("../shallow"):
            lacks = "--b commit:{}: this shallow clone has no such commit; to fetch it: {}$"
            for name, how in (
                ("main", "git fetch origin main:main"),
                ("origin/main", "git fetch origin main:refs/remotes/origin/main"),
                ("HEAD~1", "git fetch --unshallow origin"),
            ):
                self.refused(name, lacks.format(name, how))
                self.git(*how.split()[1:])
                self.assertEqual(side_command.parse(f"commit:{name}", "--b").commit, self.git("rev-parse", name))

    def test_git_says_why_it_refuses_a_clone_of_somebody_else(self) -> None:
        os.environ["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"  # git's own tests do this
        remedy = "git config --global --add safe.directory .*/clone$"
        self.refused(
            "main", f"git rev-parse: detected dubious ownership in .*/clone'; if you trust its owner: {remedy}"
        )

    @unittest.skipUnless(shutil.which("cmake"), "needs cmake")
    def test_a_build_records_no_commit_of_another_repository(self) -> None:
        files = ("bench/store/build_info.cpp.in", "results/schema.sql", "results/schema_2.sql", "cmake/BuildInfo.cmake")
        for source in (self.folder / "plain", self.clone / "unpacked"):
            for file in files:
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(REPOSITORY / file, source / file)
        head, made = self.git("rev-parse", "HEAD"), self.folder / "build_info.cpp"
        hook = {**os.environ, "GIT_DIR": str(self.clone / ".git")}
        for source, env in ((self.folder / "plain", hook), (self.clone / "unpacked", None)):
            script = source / "cmake" / "BuildInfo.cmake"
            execute("cmake", f"-Dsource={source}", f"-Doutput={made}", "-P", script, code=0, env=env)
            self.assertNotIn(head, made.read_text())
            self.assertIn('R"hvd(unknown)hvd"', made.read_text())
        shutil.copytree(self.clone / "unpacked", self.clone, dirs_exist_ok=True)
        execute("cmake", f"-Dsource={self.clone}", f"-Doutput={made}", "-P", script, code=0)
        self.assertIn(head, made.read_text())


if __name__ == "__main__":
    unittest.main()
