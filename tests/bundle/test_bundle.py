"""Runs the unpacked bundle where Open MPI is hidden, and checks that it needs no library of this machine but glibc."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from maintain.gpu_check import GPU_TESTS

BUNDLES = Path(os.environ.get("HVD_BUNDLES", "build/release/bundle"))
GLIBC = re.compile(r"/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util))\.so\.\d+$")
TRAINING = (
    "--model resnet50 --image-size 32 --batch-size 2 --threads 1 --classes 10 --num-warmup-batches 1 --num-iters 2"
)
TRAINING += " --no-db"
REPLAY = "--replay gpt2 --replay-shrink 4096 --num-warmup-batches 1 --num-iters 1 --no-db"
MPI_FOLDERS = "/usr/lib/*/openmpi /usr/lib/*/pmix* /usr/share/openmpi /usr/share/pmix* /etc/openmpi"
HIDE = f'for f in {MPI_FOLDERS}; do [ ! -d "$f" ] || mount -t tmpfs none "$f" || exit 99; done; exec "$@"'
HIDDEN = ("unshare", "--map-root-user", "--mount", "sh", "-c", HIDE, "sh")
AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe")

OVERSUBSCRIBE = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
OUTPUT = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "timeout": 1200}


class BundleTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        (cls.tar,) = BUNDLES.glob("*.tar.gz")
        with tarfile.open(cls.tar) as archive:
            archive.extractall(scratch.name)
        (cls.top,) = Path(scratch.name).iterdir()

    def run_in(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the bundle, without this machine's Open MPI where user namespaces are allowed."""
        before = HIDDEN if subprocess.run([*HIDDEN, "true"], check=False).returncode == 0 else ()
        plain = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", **dict.fromkeys(AS_ROOT, "1"), **OVERSUBSCRIBE}
        command = [*before, str(self.top / command[0]), *command[1:]]
        return subprocess.run(command, env=plain | environment, check=False, text=True, **OUTPUT)

    def test_it_is_small_and_needs_only_its_own_libraries_and_glibc(self) -> None:
        self.assertLess(self.tar.stat().st_size, 60 << 20)
        files = [*(self.top / "libexec").iterdir(), *(self.top / "lib").rglob("*.so*")]
        self.assertGreater(len(files), 50)
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.top / "lib")}
        for file in files:
            self.assertNotRegex(file.name, r"^lib(cuda|cudnn|nccl|cublas|nv)")
            done = subprocess.run(["ldd", file], env=environment, capture_output=True, text=True, check=True)
            self.assertNotIn("not found", done.stdout, file.name)
            for path in re.findall(r"(/\S+) \(0x", done.stdout):
                ours = path.startswith(f"{self.top}/lib/")
                self.assertTrue(ours or GLIBC.search(path), f"{file.name} takes {path} from this machine")

    def test_training_on_one_rank_on_two_and_with_the_bundles_glibc(self) -> None:
        program = str(self.top / "bin/hvd_bench")
        for start, glibc in (
            (["bin/hvd_bench"], ""),
            (["bin/mpirun", "-n", "2", program], ""),
            (["bin/hvd_bench"], "bundle"),
        ):
            done = self.run_in(*start, *TRAINING.split(), HVD_GLIBC=glibc)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertRegex(done.stdout, r"(?m)^total images/sec: ")
            self.assertNotIn("Sorry!", done.stdout)  # Open MPI and PMIx find their help texts
            done = self.run_in("bin/hvd_bench", *REPLAY.split(), HVD_GLIBC=glibc)
            self.assertIn("  replaying  gpt2-div4096", done.stdout)

    def test_the_gpu_tests_start_and_say_that_there_is_no_gpu(self) -> None:
        self.assertEqual({file.name for file in (self.top / "tests").iterdir()}, set(GPU_TESTS))
        for name in GPU_TESTS:
            done = self.run_in(f"tests/{name}", CUDA_VISIBLE_DEVICES="")
            self.assertEqual((done.returncode, "SKIPPED" in done.stdout), (0, True), done.stdout)

    @unittest.skipIf(shutil.which("nvidia-smi"), "there may be a GPU")
    def test_gpu_check_starts(self) -> None:
        self.assertIn("about 8:", self.run_in("scripts/maintain/gpu_check", "--plan").stdout)
        done = self.run_in("scripts/maintain/gpu_check", f"{self.top}/results", "--call", "1")
        self.assertEqual((done.returncode, len(done.stdout.splitlines())), (3, 1), done.stdout)


if __name__ == "__main__":
    unittest.main()
