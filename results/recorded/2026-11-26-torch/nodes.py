"""Plays two profiles in turn on 4 namespaces with shaped links, both scaled to the backward of the first one.

PYTHONPATH=scripts python -B nodes.py PATH_OF_HVD_BENCH FIRST.replay SECOND.replay MBIT SHRINK ROUNDS
"""

import subprocess
import sys
import time
from pathlib import Path

from hvdb.judge import efficiency
from hvdb.read import runs
from hvnet import network
from hvnet.network import Network, Wiring

INSIDE = "--inside"


def value(text: str, key: str) -> float:
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key} "))


def scaled(text: str, end: float) -> str:
    """Returns the profile with its backward ending at `end`, without factors, and with an update of 1 ms."""
    factor, made = end / value(text, "backward_end_seconds"), []
    for line in text.splitlines():
        words = line.split(" ")
        if words[0] == "factors":
            continue
        if words[0] in ("forward_seconds", "backward_end_seconds"):
            words[1] = f"{float(words[1]) * factor:.9g}"
        if words[0] == "update_seconds":
            words[1] = "0.001"
        if words[0] == "gradient":
            words[2:4] = [f"{float(word) * factor:.9g}" for word in words[2:4]]
        made.append(" ".join(words))
    return "\n".join([*made, ""])


def main() -> int:
    if sys.argv[-1] != INSIDE:
        return network.enter([sys.executable, "-B", *sys.argv, INSIDE])
    bench, rate, shrink, rounds = Path(sys.argv[1]), float(sys.argv[4]), sys.argv[5], int(sys.argv[6])
    texts = [Path(name).read_text() for name in sys.argv[2:4]]
    end = value(texts[0], "backward_end_seconds")
    scratch = network.prepare()
    with Network(Wiring(4, rate, 0.0), bench.with_name("delay_switch"), scratch) as net:
        time.sleep(2)  # until the bridge forwards
        for number in range(rounds):
            for name, text in zip(("first", "second"), texts, strict=True):
                profile, store = scratch / f"{name}.replay", scratch / f"{name}-{number}.db"
                profile.write_text(scaled(text, end))
                words = ["--replay", profile, "--replay-shrink", shrink, "--bucket-mb", 25 / float(shrink), "--threads", 1]
                words += ["--efficiency", "--num-iters", 16, "--num-warmup-batches", 2, "--db", store, "--quiet"]
                subprocess.run([*net.mpirun(1), str(bench), *map(str, words)], check=True, capture_output=True)
                full = next(run for run in runs.load([store]) if run.phase == "full")
                step, exposed = efficiency.step_time(full).value, full.decomposition["exposed_communication"].seconds
                print(f"{name}: step {1e3 * step:.1f} ms, exposed {100 * exposed / step:.1f} %", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
