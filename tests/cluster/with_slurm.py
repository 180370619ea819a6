#!/usr/bin/env python3
"""Runs a command with its own Slurm: tests/cluster/with_slurm.py --nodes 2 --gpus 4 -- srun -N2 hostname

The command sees SLURM_CONF and can use all of Slurm's commands. The cluster ends with the command.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from slurm_cluster import Cluster, Shape, environment, missing_programs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--cpus", type=int, default=4, help="CPUs that each node claims to have")
    parser.add_argument("--gpus", type=int, default=0, help="counted GPUs per node (none is there)")
    parser.add_argument("--low-priority", action="store_true", help="tasks at nice 19, for many more tasks than cores")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        parser.error("no command given")
    if reason := missing_programs():
        print(f"with_slurm: {reason}", file=sys.stderr)
        return 2
    shape = Shape(arguments.nodes, arguments.cpus, arguments.gpus, low_priority=arguments.low_priority)
    with Cluster(shape) as cluster:
        return subprocess.run(command, env=environment(cluster.env), check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
