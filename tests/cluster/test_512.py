"""Runs 512 tasks on 128 nodes of a real Slurm. The results are one store and the efficiency table.

One machine is too small to train in 512 processes. The test therefore records a step first, which the tasks replay
with gradients and buckets cut to 1/4096 (--replay-shrink). Everything else is real: the launch, 512 processes that
find one another, the reductions and their check, the gathering of every rank's samples, and one complete store. The
times say nothing about a network of 512 GPUs.
"""

import re
import unittest
from pathlib import Path

from cluster_test import ClusterTest, Shape, main

from program import HANG, PROGRAM, execute

NODES, PER_NODE = 128, 4
SHRINK = 4096
BUCKET_MIB = 0.02  # gives two or three buckets, which are reduced within nodes, then by doubling between nodes
NEEDED_GIB = 8  # for 512 processes with some 7 MB each, 128 slurmd, and the gradients


def available_gib() -> float:
    """Returns the memory that programs can get, page cache included."""
    (kib,) = re.findall(r"^MemAvailable: *(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(kib) / 2**20


@unittest.skipIf(available_gib() < NEEDED_GIB, f"needs {NEEDED_GIB} GiB of available memory")
class FiveHundredAndTwelve(ClusterTest):
    shape = Shape(nodes=NODES, cpus=PER_NODE, gpus=PER_NODE, low_priority=True)

    def record(self) -> str:
        """Records a step of ResNet-101 on this machine, some hundred milliseconds long. Returns the file."""
        file = str(self.folder / "resnet101.replay")
        small = ["--model", "resnet101", "--image-size", "64", "--batch-size", "4", "--threads", "1"]
        steps = ["--num-warmup-batches", "1", "--num-iters", "3", "--no-db", "--record-replay", file]
        execute([PROGRAM, *small, *steps]).ended_with(0)
        return file

    def test_one_complete_store(self) -> None:
        self.need_hosts()
        replay = ["--replay", self.record(), "--replay-shrink", str(SHRINK), "--bucket-mb", f"{BUCKET_MIB:.6f}"]
        measure = ["--efficiency", "--num-warmup-batches", "1", "--num-iters", "3", "--deadline-seconds", "300"]
        output = f"{self.folder}/out"
        script = (
            "#!/bin/bash\n"
            f"#SBATCH --nodes={NODES} --ntasks-per-node={PER_NODE} --gpus-per-node={PER_NODE} --exclusive --time=15\n"
            f"#SBATCH --output={output}\n"
            f"srun --mpi=pmix {PROGRAM} {' '.join(replay + measure)} --threads 1 --db {self.db}\n"
        )
        job = self.cluster.submit(script)
        state = self.cluster.finished(job, timeout=2 * HANG)
        text = (self.folder / "out").read_text()
        self.assertEqual((state["JobState"], state["ExitCode"]), ("COMPLETED", "0:0"), text + self.cluster.logs())
        self.assertIn("512 ranks, 128 hosts", text)
        self.assertNotIn("error", text)
        self.complete()
        self.in_the_table()

    def complete(self) -> None:
        columns = "phase, model, device, world_size, nodes, allocation_size, status"
        rows = self.query(f"SELECT {columns} FROM run ORDER BY phase")
        model = f"resnet101-div{SHRINK}"
        self.assertEqual(
            rows,
            [
                ("full", model, "replay", 512, 128, 512, "complete"),
                ("none", model, "replay", 512, 128, 512, "complete"),
                ("solo", model, "replay", 1, 1, 512, "complete"),
            ],
        )
        ((checks, plane),) = self.query("SELECT checks, data_plane FROM run WHERE phase = 'full'")
        self.assertIn("gradients equal an independent sum (100 %", checks)
        self.assertIn("equal on all ranks at the end", checks)
        self.assertIn("hierarchical", plane)
        full = "FROM {} JOIN run ON uuid = run_uuid WHERE phase = 'full'"
        per_host = self.query(f"SELECT DISTINCT count(*) {full.format('rank')} GROUP BY host")
        self.assertEqual(per_host, [(PER_NODE,)], "four ranks on every host")
        ((hosts, checksums),) = self.query(
            f"SELECT count(DISTINCT host), count(DISTINCT gradient_checksum) {full.format('rank')}"
        )
        self.assertEqual((hosts, checksums), (NODES, 1))
        samples = self.query(f"SELECT kind, count(*), min(count) {full.format('sample')} GROUP BY kind")
        self.assertTrue(samples)
        for kind, ranks, least in samples:
            self.assertEqual((ranks, least), (1, 200) if kind.endswith("_replicates") else (512, 3), kind)
        ((divisor,),) = self.query(
            f"SELECT DISTINCT value {full.format('provenance')} AND key = 'replay.gradient_divisor'"
        )
        self.assertEqual(divisor, str(SHRINK))
        self.assertEqual(self.query("PRAGMA integrity_check"), [("ok",)])

    def in_the_table(self) -> None:
        table = self.script("efficiency", str(self.db)).ended_with(0)
        print(table.out)
        rows = [line for line in table.out.splitlines() if f"1/{SHRINK} of its gradients, replayed compute" in line]
        self.assertEqual(len(rows), 2, table)
        self.assertIn("512", rows[1])
        self.assertNotIn("published", table.out)


if __name__ == "__main__":
    main()
