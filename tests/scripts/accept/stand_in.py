"""Stands in for the launchers and scripts of docs/accept.md. `stand_in.py NAME ARGUMENTS...` runs one command small.

A command of hvd_bench is first parsed by the real program, unchanged. Then it runs on two ranks, which are threads of
one process on the CPU, with small sizes; training replays a step that only sleeps. Scripts run as they are, but a
prediction is of two ranks. The Slurm of a campaign is the stand-in of tests/slurm, which only queues; the page's store
small.db takes the place of what the jobs would measure. ACCEPT_LOG is a file that gets one line of JSON for each
command: its words, exit code and output, and why it is not a valid command ("" if it is).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "tests" / folder) for folder in ("slurm", "scripts")]

import jsrun_sets  # noqa: E402  (the path must be set first)
from fake_cluster import STAND_INS, FakeCluster  # noqa: E402
from limits import HANG  # noqa: E402

PROFILE = REPOSITORY / "tests" / "cli" / "sleep.replay"
# Options of srun that the page may use. All of them take a value.
OF_SRUN = re.compile(r"-N|-n|-c|-w|--ntasks-per-node=\d+|--gpus-per-node=\d+")
TWO_RANKS = ["--device", "cpu", "--ranks", "2"]
# An option that the dry run gives another value; None leaves the option out.
SMALL = {
    "coll": {"-e": "64K"},
    "validate": {"--model": "resnet50", "--steps": "10"},
    "train": {"--model": None, "--record-replay": None},
}
# No pause of a busy machine makes a rank slower than this threshold, and no cell waits for a narrow interval.
MORE = {
    "coll": ["-n", "10", "-w", "1", "--max-time", "0.1", "--place", "in", "--no-bound"],
    "validate": "--image-size 32 --batch-size 1 --classes 2 --threads 1 --threshold 999".split(),
    "train": ["--replay", str(PROFILE), "--num-warmup-batches", "1", "--num-iters", "20"],
}


class NotValid(Exception):
    """The page's command is wrong."""


def run(words: Sequence[object], **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command. Its standard error follows its standard output."""
    usual = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "check": False, "timeout": HANG}
    environment = {**os.environ, "PATH": os.environ["ACCEPT_PATH"], **variables}
    return subprocess.run(list(map(str, words)), env=environment, **usual)


def launched(launcher: str, words: Sequence[str]) -> list[str]:
    """Returns the arguments of hvd_bench behind the launcher's options. Errors: NotValid."""
    rest = list(words)
    if launcher == "jsrun":
        try:
            request = jsrun_sets.parse(rest)
            jsrun_sets.place(request, jsrun_sets.Machine(nodes=32, cores=128, gpus=8))
        except jsrun_sets.Refused as refused:
            raise NotValid(str(refused)) from refused
        rest = request.command
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if not OF_SRUN.fullmatch(option) or ("=" not in option and not rest):
            raise NotValid(f"srun: {option} is not an option of srun that this test knows")
        if "=" not in option:
            rest.pop(0)
    if rest[:1] != ["hvd_bench"]:
        raise NotValid(f"{launcher} starts {rest[:1]}, not hvd_bench")
    return rest[1:]


def small(command: str, words: Sequence[str]) -> list[str]:
    """Returns the words of the dry run."""
    changed = {"--device": None, **SMALL[command]}
    made, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word not in changed:
            made.append(word)
            continue
        value = rest.pop(0)
        if word == "--record-replay":
            shutil.copy(PROFILE, value)
        if changed[word] is not None:
            made += [word, changed[word]]
    return [*made, *TWO_RANKS, *MORE[command]]


def bench(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Parses the words of hvd_bench, and runs them small. Errors: NotValid if the program refuses the words."""
    program = os.environ["HVD_BENCH"]
    parsed = run([program, *words], HVD_MAX_CPU_ISA="refused")  # hvd_bench reads this after its command line
    if "HVD_MAX_CPU_ISA" not in parsed.stdout:
        raise NotValid(parsed.stdout or "hvd_bench says nothing about these words")
    if words[:1] == ["doctor"]:
        return parsed
    command = words[0] if words[0] in SMALL else "train"
    done = run([program, *small(command, words)])
    if command == "coll" and done.returncode == 0:
        with contextlib.closing(sqlite3.connect(words[words.index("--db") + 1])) as store, store:
            # On a machine of one processor predict would leave these sessions out.
            store.execute("UPDATE coll_session SET oversubscribed = 0")
    return done


def script(name: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command of scripts/. Errors: NotValid if there is no such script."""
    rest = list(words)
    program = REPOSITORY / "scripts" / name
    if not program.is_file():
        raise NotValid(f"there is no scripts/{name}")
    if "--ranks" in rest:
        rest[rest.index("--ranks") + 1] = "2"
        rest += ["--draws", "20"]
    cluster = FakeCluster(Path("cluster").resolve())
    slurm = {"FAKE_CLUSTER": str(cluster.folder), "PATH": f"{STAND_INS}:{os.environ['ACCEPT_PATH']}"}
    done = run([program, *rest], HVD_PYTHON=sys.executable, **slurm)
    if rest[:1] == ["submit"] and done.returncode == 0:
        stores = Path(words[1]) / "stores"
        stores.mkdir(exist_ok=True)
        shutil.copy("small.db", stores / "n0001.db")
    return done


def main() -> None:
    name, *words = sys.argv[1:]
    called, fault, done = [name, *words], "", None
    try:
        if name in ("srun", "jsrun"):
            words = launched(name, words)
            called = ["hvd_bench", *words]
            done = bench(words)
        else:
            done = script(name, words)
    except NotValid as error:
        fault = str(error)
    entry = {"words": called, "fault": fault, "code": done.returncode if done else 2}
    with Path(os.environ["ACCEPT_LOG"]).open("a", encoding="utf-8") as log:
        log.write(json.dumps({**entry, "output": done.stdout if done else ""}) + "\n")
    sys.exit(entry["code"])


main()
