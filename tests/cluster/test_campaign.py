"""Generates a campaign that really trains with 1, 2, 4 and 8 tasks on up to four nodes, and reads its table."""

from pathlib import Path

from campaign_test import Campaign
from cluster_test import ClusterTest, Shape, main

SPEC = """
name = "cpu"
models = ["resnet50"]
ranks = [1, 2, 4, 8]
[weak]
batch_size = 1
[options]
image-size = 32
classes = 10
threads = 1
num-warmup-batches = 1
num-iters = 3
max-time = 60
"""
# Variables of an allocation and of a user's shell. None of them may reach the scheduler's programs or the jobs.
OUTER = {"SLURM_MEM_PER_CPU": "100", "SLURM_NTASKS": "3", "SQUEUE_STATES": "RUNNING", "SBATCH_QOS": "none"}
TRACE = {"HOROVOD_TIMELINE": "/tmp/hvd_campaign_trace"}
CELLS = 2 + 3 + 3  # in the jobs of one, two and four nodes; the jobs of two and four nodes each have 2 baselines


class OneToEight(ClusterTest):
    shape = Shape(nodes=4, cpus=2)

    def test_one_to_eight_tasks(self) -> None:
        self.need_hosts()
        folder = self.folder / 'it\'s 100%j, "a" #1'
        folder.mkdir()
        campaign = Campaign(self.cluster, folder, SPEC)
        campaign.submit({**OUTER, **TRACE})
        self.assertIn("nothing", campaign.resume(OUTER), "what is pending is seen")
        campaign.wait_until_done(CELLS, 400)
        logs = sorted(path.name for path in (campaign.folder / "logs").iterdir())
        self.assertEqual(logs, sorted(f"n000{n}.{i}.1.out" for n, i in zip((1, 2, 4), campaign.numbers(), strict=True)))
        self.assertIn("nothing", campaign.resume())
        self.assertEqual(len(campaign.stores), 3, "one store per job")

        merged = self.folder / "all.db"
        self.script("merge", "-o", str(merged), *map(str, campaign.stores)).ended_with(0)
        self.baselines_of_the_same_allocation(merged)
        table = self.script("efficiency", str(merged), "--mix-fingerprints").ended_with(0)
        print(table.out)
        rows = [line for line in table.out.splitlines() if line.startswith("ResNet-50")]
        for ranks in (2, 4, 8):
            self.assertTrue(any(f" {ranks} " in row and "static" in row for row in rows), table)
        self.assertNotIn("replayed", table.out)

    def baselines_of_the_same_allocation(self, merged: Path) -> None:
        sql = (
            "SELECT r.world_size, r.nodes, job.value, role.value FROM run r "
            "JOIN provenance job ON job.run_uuid = r.uuid AND job.key = 'env.SLURM_JOB_ID' "
            "JOIN provenance role ON role.run_uuid = r.uuid AND role.key = 'label.role' "
            "WHERE r.device = 'cpu' AND r.status = 'complete' AND (r.phase = 'full' OR r.allocation_size = 1)"
        )
        rows = self.query(sql, merged)
        scale = {ranks: (nodes, job) for ranks, nodes, job, role in rows if role == "scale"}
        self.assertEqual({ranks: nodes for ranks, (nodes, _) in scale.items()}, {1: 1, 2: 1, 4: 2, 8: 4})
        baselines = {(job, role, ranks) for ranks, _, job, role in rows if role != "scale"}
        for ranks in (4, 8):
            job = scale[ranks][1]
            self.assertIn((job, "one_rank", 1), baselines)
            self.assertIn((job, "one_node", 2), baselines)


if __name__ == "__main__":
    main()
