"""Runs the bundle in a root folder that contains only glibc, a shell and the unpacked bundle."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

BUNDLES = Path(os.environ.get("HVD_BUNDLES", "build/release/bundle"))
MOST_MIB = 60
GLIBC = re.compile(r"/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util))\.so\.\d+$")
# The host must provide these libraries: driver, CUDA, cuDNN, NCCL.
HOST_LIBRARIES = re.compile(r"lib(cuda|cudnn|nccl|cublas|nv)[^/]*\.so")
TOOLS = ("sh", "readlink", "getconf")
TRAINING = ("--model", "resnet50", "--image-size", "32", "--batch-size", "2", "--threads", "1", "--classes", "10")
TRAINING += ("--num-warmup-batches", "1", "--num-iters", "2")
# This script runs a command in the root folder. The script's mounts disappear with the mount namespace.
ENTER = """
set -e
mount -t proc none "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs none "$1/dev/shm"
exec chroot "$@"
"""


def can_enter() -> bool:
    if shutil.which("unshare") is None or shutil.which("chroot") is None:
        return False
    probe = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", "mount -t proc none /proc"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def copy_with_libraries(program: Path, root: Path) -> None:
    """Copies a tool and all libraries that the tool needs: glibc and a few small libraries."""
    target = root / "bin" / program.name
    shutil.copy2(program.resolve(), target)
    listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=True).stdout
    for match in re.finditer(r"(/\S+) \(0x", listed):
        library = Path(match[1])
        place = root / ("lib64" if library.name.startswith("ld-linux") else "lib/x86_64-linux-gnu") / library.name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), place)


class BareHost:
    """The root folder. `run` executes a command in the folder with a fresh environment."""

    def __init__(self, folder: Path, tar: Path) -> None:
        self.root = folder / "root"
        for name in ("bin", "proc", "sys", "dev", "tmp", "etc", "elsewhere"):
            (self.root / name).mkdir(parents=True)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            copy_with_libraries(Path(found), self.root)
        home = self.root / "lib/x86_64-linux-gnu"
        for name in ("libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libresolv.so.2", "libutil.so.1"):
            shutil.copy2((Path("/lib/x86_64-linux-gnu") / name).resolve(), home / name)
        (self.root / "etc/passwd").write_text("root:x:0:0::/tmp:/bin/sh\n")
        with tarfile.open(tar) as archive:
            archive.extractall(self.root / "elsewhere")
        (self.bundle,) = (self.root / "elsewhere").iterdir()

    def inside(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.root))

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs `command` in the root folder. The command's first word is a path in the bundle or an absolute path."""
        program = command[0] if command[0].startswith("/") else self.inside(self.bundle / command[0])
        enter = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", ENTER, "sh", str(self.root)]
        plain = {"PATH": "/bin:/usr/bin:/sbin:/usr/sbin", "HOME": "/tmp", "OMP_NUM_THREADS": "1"}
        plain |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        plain |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
        return subprocess.run(
            [*enter, program, *command[1:]],
            env=plain | environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )


def the_tar() -> Path:
    (tar,) = BUNDLES.glob("*.tar.gz")
    return tar


class ArchiveTest(unittest.TestCase):
    def test_it_is_small_and_has_one_folder(self) -> None:
        self.assertLess(the_tar().stat().st_size, MOST_MIB << 20)
        with tarfile.open(the_tar()) as archive:
            members = archive.getmembers()
        self.assertEqual({member.name.split("/")[0] for member in members}, {the_tar().name.removesuffix(".tar.gz")})
        self.assertEqual([m.name for m in members if m.issym() and m.linkname.startswith("/")], [])

    def test_nothing_of_cuda_is_taken_along(self) -> None:
        with tarfile.open(the_tar()) as archive:
            names = [name for name in archive.getnames() if HOST_LIBRARIES.search(name)]
        self.assertEqual(names, [])


@unittest.skipUnless(can_enter(), "needs unshare, chroot, and the right to use them")
class BareHostTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.host = BareHost(Path(scratch.name), the_tar())

    def good(self, *command: str, **environment: str) -> str:
        done = self.host.run(*command, **environment)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_every_library_is_the_bundles_or_glibc(self) -> None:
        bundle = self.host.bundle
        files = [*(bundle / "libexec").iterdir(), *(bundle / "lib").glob("*.so*"), *bundle.glob("lib/*/*.so")]
        self.assertGreater(len(files), 50)
        for file in files:
            done = self.host.run("/lib64/ld-linux-x86-64.so.2", "--list", self.host.inside(file))
            listed = done.stdout
            self.assertEqual(done.returncode, 0, f"{file.name}: {listed}{done.stderr}")
            self.assertNotIn("not found", listed, file.name)
            for match in re.finditer(r"(?:=> )?(/\S+) \(0x", listed):
                ours = os.path.normpath(match[1]).startswith(self.host.inside(bundle) + "/lib/")
                self.assertTrue(ours or GLIBC.search(match[1]), f"{file.name} takes {match[1]} from the host")

    def test_doctor_finds_compute_and_mpi(self) -> None:
        done = self.host.run("bin/hvd_bench", "doctor")
        text = done.stdout + done.stderr
        self.assertIn(done.returncode, (0, 1), text)
        self.assertRegex(text, r"ok +oneDNN fp32|warning +oneDNN fp32")
        self.assertRegex(text, r"ok +MPI +Open MPI .*starts, world of 1")

    def test_training(self) -> None:
        self.assertIn("total images/sec:", self.good("bin/hvd_bench", *TRAINING, "--no-db"))

    def test_training_with_the_bundles_glibc(self) -> None:
        text = self.good("bin/hvd_bench", *TRAINING, "--db", "/tmp/own.db", HVD_GLIBC="bundle")
        self.assertIn("total images/sec:", text)

    def test_two_ranks(self) -> None:
        program = self.host.inside(self.host.bundle / "bin/hvd_bench")
        text = self.good("bin/mpirun", "-n", "2", program, *TRAINING, "--db", "/tmp/two.db")
        self.assertIn("total images/sec:", text)
        with sqlite3.connect(self.host.root / "tmp/two.db") as store:
            self.assertEqual(store.execute("SELECT world_size FROM run").fetchall(), [(2,)])

    def test_a_wrong_option_of_mpirun_is_explained(self) -> None:
        """mpirun must find its help texts although the bundle has moved mpirun to another folder."""
        done = self.host.run("bin/mpirun", "-n", "2", "no-such-program")
        text = done.stdout + done.stderr
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("mpirun was unable to find the specified executable", text)
        self.assertNotIn("Sorry!", text)

    def test_the_gpu_tests_start_and_say_that_there_is_none(self) -> None:
        tests = json.loads((self.host.bundle / "tests/tests.json").read_text())
        self.assertGreater(len(tests), 0)
        for test in tests:
            command = [word.replace("{root}", self.host.inside(self.host.bundle)) for word in test["command"]]
            self.assertRegex(self.good(*command), r"SKIPPED")

    def test_a_name_that_is_no_program(self) -> None:
        (self.host.bundle / "bin/another").symlink_to("run")
        done = self.host.run("bin/another")
        self.assertEqual(done.returncode, 2)
        self.assertIn("not a program of the bundle", done.stderr)


if __name__ == "__main__":
    unittest.main()
