"""A test case with its own Slurm. All tests of one class share this Slurm."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

from slurm_cluster import Cluster, Shape, missing_programs

from program import HANG, PROGRAM, ProgramTest, Result

ROOT = Path(__file__).resolve().parents[2]
SLEEPING_STEPS = 8  # how many gradients profile() has


def profile(folder: Path, *, step_seconds: float = 0.1, batch_size: int = 4) -> Path:
    """Writes a replay profile with 8 gradients of 4 KB whose steps sleep. A run takes a known time and no processor."""
    lines = [
        "hvd-replay 1",
        "model resnet50",
        f"batch_size {batch_size}",
        "image_size 64",
        "device none (a test's sleep)",
        "compute_type fp32",
        "source_run none",
        f"forward_seconds {step_seconds / 3:.9g}",
        f"backward_end_seconds {step_seconds:.9g}",
        "update_seconds 0",
    ]
    for i in range(SLEEPING_STEPS):
        ready = step_seconds * (1 + 2 * (i + 1) / SLEEPING_STEPS) / 3
        lines.append(f"gradient 1000 {ready:.9g} {ready:.9g} g{i}")
    file = folder / "sleep.replay"
    file.write_text("\n".join([*lines, f"end {SLEEPING_STEPS}", ""]))
    return file


def scripts(name: str) -> str:
    """Returns the path of one of the project's scripts."""
    return str(ROOT / "scripts" / name)


@unittest.skipIf(missing_programs(), missing_programs())
class ClusterTest(ProgramTest):
    """self.cluster is running, and all its nodes see self.folder."""

    shape = Shape()
    cluster: Cluster

    @classmethod
    def setUpClass(cls) -> None:
        cls.cluster = Cluster(cls.shape)
        cls.cluster.__enter__()
        cls.addClassCleanup(cls.cluster.stop)

    def need_hosts(self) -> None:
        """Skips the test if MPI and hvd_bench would see all nodes as one host."""
        if not self.cluster.place.isolated:
            self.skipTest("no right to make namespaces here: all nodes are this host")

    def bench(self, *arguments: str, tasks: tuple[str, ...] = ("-n1",), timeout: float = HANG) -> Result:
        """Runs hvd_bench as the tasks of a Slurm step, joined by PMIx."""
        return self.cluster.srun("--mpi=pmix", *tasks, PROGRAM, *arguments, timeout=timeout)

    def script(self, name: str, *arguments: str, timeout: float = HANG) -> Result:
        return self.cluster.run(scripts(name), *arguments, timeout=timeout)


def main() -> None:
    print("program:", PROGRAM, "python:", sys.version.split()[0])
    unittest.main(verbosity=2)
