"""Tests the cluster that all other tests use: its properties, and that the cluster leaves nothing behind."""

import signal
import subprocess
import sys
import unittest
from pathlib import Path

from cluster_test import ClusterTest, Shape, main
from slurm_cluster import Cluster, may_isolate, missing_programs

from program import environment, eventually, processes_of


class Nodes(ClusterTest):
    shape = Shape(nodes=3, cpus=4)

    def test_host_names_and_shared_memory_are_the_nodes_own(self) -> None:
        self.need_hosts()
        result = self.cluster.srun("-N3", "sh", "-c", "touch /dev/shm/$(hostname); ls /dev/shm")
        self.assertEqual(sorted(result.out.split()), ["n1", "n2", "n3"], result)

    def test_a_node_can_die_and_come_back(self) -> None:
        self.cluster.signal_daemon("n3", signal.SIGKILL)
        self.cluster.run("scontrol", "update", "nodename=n3", "state=down", "reason=test")
        self.assertTrue(eventually(lambda: self.cluster.nodes_in("idle") == 2))
        self.cluster.start_node("n3")
        self.assertTrue(eventually(lambda: self.cluster.nodes_in("idle") == 3), self.cluster.logs())


@unittest.skipIf(missing_programs(), missing_programs())
class Endings(unittest.TestCase):
    def test_leaving_ends_everything(self) -> None:
        with Cluster(Shape(nodes=2)) as cluster:
            folder = str(cluster.folder)
            cluster.submit("#!/bin/sh\nsrun -n2 sleep 1000\n", "-N2", "-n2")
            self.assertTrue(eventually(lambda: any("sleep" in line for line in processes_of(folder))))
        self.assertEqual(processes_of(folder), [])
        self.assertFalse(Path(folder).exists())

    def kill_its_user(self, *, isolated: bool) -> None:
        program = (
            "import sys, time\nsys.path.insert(0, sys.argv[1])\nfrom slurm_cluster import Cluster, Shape\n"
            f"with Cluster(Shape(nodes=2), isolated={isolated}) as cluster:\n"
            "    cluster.submit('#!/bin/sh\\nsrun -n2 sleep 1000\\n', '-N2', '-n2')\n"
            "    print(cluster.folder, flush=True)\n    time.sleep(1000)\n"
        )
        command = [sys.executable, "-B", "-c", program, str(Path(__file__).parent)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as user:
            folder = user.stdout.readline().strip()
            self.assertTrue(folder)
            self.assertTrue(eventually(lambda: any("sleep" in line for line in processes_of(folder))))
            user.kill()
        self.assertTrue(eventually(lambda: not processes_of(folder)), processes_of(folder))
        self.assertTrue(eventually(lambda: not Path(folder).exists()))

    def test_the_death_of_its_user_ends_everything(self) -> None:
        self.kill_its_user(isolated=False)

    @unittest.skipUnless(may_isolate(), "no right to make namespaces here: all nodes are this host")
    def test_the_death_of_its_user_ends_namespaces_too(self) -> None:
        self.kill_its_user(isolated=True)


if __name__ == "__main__":
    main()
