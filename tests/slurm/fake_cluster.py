"""A scheduler for tests: job records in a folder, and programs (stand_ins/) that read and write them.

The scheduler queues, refuses and reports as Slurm and LSF do, with the same texts. The test decides which task runs and
when a task is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "scripts"))

from limits import HANG  # noqa: E402  (the path must be set first)

STAND_INS = HERE / "stand_ins"


@dataclass(frozen=True)
class Task:
    """One element of an array job, or a whole job that is no array (index 1)."""

    job: int
    index: int


class FakeCluster:
    """The jobs of one test. `folder` contains their records. Stand-ins read its path from FAKE_CLUSTER."""

    def __init__(self, folder: Path, **limits: object) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "limits.json").write_text(json.dumps(limits), encoding="utf-8")

    def environment(self) -> dict[str, str]:
        foreign = ("SLURM_", "LSB_", "JSM_", "OMPI_", "PMIX_", "PMI_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        # The folder of this Python comes before the rest of PATH, where python3 may be a slow wrapper.
        path = f"{STAND_INS}:{Path(sys.executable).parent}:{clean['PATH']}"
        return {**clean, "FAKE_CLUSTER": str(self.folder), "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def records(self) -> list[dict]:
        return [load(path) for path in sorted(self.folder.glob("job-*.json"))]

    def record(self, job: int) -> dict:
        return load(path_of(self.folder, job))

    def tasks(self, state: str = "PENDING") -> list[Task]:
        return [
            Task(record["id"], int(index))
            for record in self.records()
            for index, one in record["states"].items()
            if one == state
        ]

    def ready(self) -> list[Task]:
        """Returns the pending tasks whose dependencies have succeeded. Cancels tasks whose dependencies have failed."""
        found = []
        for task in self.tasks():
            record = self.record(task.job)
            awaited = [element for id in record["after"] for element in elements(self.folder, id)]
            states = [self.record(job)["states"][index] for job, index in awaited]
            if any(state in ("FAILED", "CANCELLED") for state in states):
                self.set_state(task, "CANCELLED")
            elif all(state == "COMPLETED" for state in states):
                found.append(task)
        return found

    def set_state(self, task: Task, state: str) -> None:
        record = self.record(task.job)
        record["states"][str(task.index)] = state
        save(self.folder, record)

    def start(self, task: Task, restart: int = 0, **environment: str) -> subprocess.Popen[str]:
        """Starts the task's script in its own session, as a scheduler does."""
        record = self.record(task.job)
        self.set_state(task, "RUNNING")
        log = self.folder / f"{task.job}.{task.index}.out"
        with log.open("a") as output:
            variables = {**record["environment"], **_variables(record, task, restart), **environment}
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "text": True}
            return subprocess.Popen(["bash", record["script"]], env=variables, start_new_session=True, **streams)

    def run(self, task: Task, restart: int = 0, timeout: float = HANG, **environment: str) -> int:
        """Runs the task to its end and sets its state, COMPLETED or FAILED. Returns the task's exit code."""
        child = self.start(task, restart, **environment)
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            kill_group(child)
            raise AssertionError(f"{task} still runs after {timeout} s:\n{self.log(task)}") from None
        self.set_state(task, "COMPLETED" if code == 0 else "FAILED")
        return code

    def run_all(self, timeout: float = HANG, **environment: str) -> None:
        """Runs ready tasks until no task is ready."""
        while ready := self.ready():
            self.run(ready[0], timeout=timeout, **environment)

    def log(self, task: Task) -> str:
        return (self.folder / f"{task.job}.{task.index}.out").read_text(encoding="utf-8")


def kill_group(child: subprocess.Popen[str]) -> None:
    """Sends SIGKILL to a task and all processes that the task started, as if its node failed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def wait_until(what: object, seconds: float = HANG) -> None:
    """Waits until `what()` is true. Raises AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while not what():  # type: ignore[operator]
        if time.monotonic() > end:
            raise AssertionError(f"did not come true in {seconds} s")
        time.sleep(0.02)


def _variables(record: dict, task: Task, restart: int) -> dict[str, str]:
    if record["kind"] == "lsf":
        nodes = record["nodes"]
        hosts = record["folder"] + f"/hosts.{record['id']}"
        Path(hosts).write_text("batch1\n" + "".join(f"n{i}\n" * 2 for i in range(nodes)), encoding="utf-8")
        index = str(task.index) if record["array"] else "0"
        return {"LSB_JOBID": str(record["id"]), "LSB_JOBINDEX": index, "LSB_DJOB_HOSTFILE": hosts, "LSB_RESTART": "N"}
    number = slurm_number(record, str(task.index))
    found = {"SLURM_JOB_ID": str(number), "SLURM_RESTART_COUNT": str(restart), "SLURM_MEM_PER_NODE": "4000"}
    if record["array"]:
        found |= {"SLURM_ARRAY_JOB_ID": str(record["id"]), "SLURM_ARRAY_TASK_ID": str(task.index)}
    return found if restart else {key: value for key, value in found.items() if key != "SLURM_RESTART_COUNT"}


# ---- The stand-ins call the functions below.


def slurm_number(record: dict, index: str) -> int:
    """Returns Slurm's number of one element of a job. The last element of an array has the number of the array."""
    return record["id"] if index == list(record["states"])[-1] else record["id"] * 100 + int(index)


def elements(folder: Path, id: str) -> list[tuple[int, str]]:
    """Returns the elements (job, index) that an id of Slurm (101, 101_2, 10102) or of LSF (101, 101[2]) means.

    The number of an array means all of its elements, although one of them has the same number. Returns [] for an
    unknown id.
    """
    job, _, index = id.rstrip("]").replace("[", "_").partition("_")
    found = []
    for record in map(load, sorted(folder.glob("job-*.json"))):
        for own in record["states"]:
            whole, single = job == str(record["id"]), job == str(slurm_number(record, own))
            if (whole and index in ("", own)) or (single and not index):
                found.append((record["id"], own))
    return found


def set_states(folder: Path, id: str, state: str, cluster: str = "") -> bool:
    """Sets the state of all elements that `id` means on `cluster`. Returns False if there are none."""
    found = [one for one in elements(folder, id) if load(path_of(folder, one[0]))["cluster"] == cluster]
    for job, index in found:
        record = load(path_of(folder, job))
        record["states"][index] = state
        save(folder, record)
    return bool(found)


def path_of(folder: Path, job: int) -> Path:
    return folder / f"job-{job:06d}.json"


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def save(folder: Path, record: dict) -> None:
    path = path_of(folder, record["id"])
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(record), encoding="utf-8")
    fresh.replace(path)


def limits(folder: Path) -> dict:
    return load(folder / "limits.json")


def directive_words(line: str) -> list[str]:
    """Splits the rest of an #SBATCH line as sbatch does (src/sbatch/opt.c of Slurm 22.05, tried with tests/cluster).

    A backslash takes the next character as it is, even between quotes. "#" begins a comment, but not between quotes.
    """
    words, word, quote, escaped = [], None, "", False
    for character in f"{line} ":
        if not (quote or escaped) and (character.isspace() or character == "#"):
            words += [] if word is None else [word]
            word = None
            if character == "#":
                break
        elif not escaped and character == "\\":
            escaped = True
        elif not escaped and character in (quote or "'\""):
            quote = "" if quote else character
        else:
            word, escaped = (word or "") + character, False
    if quote:
        print(f"sbatch: fatal: Unmatched `{quote}` in [{line}]", file=sys.stderr)
        sys.exit(1)
    return words


def slurm_log(pattern: str, job: int, index: int) -> str:
    """Returns the path of a job's log, as slurmstepd does. After a backslash anywhere, nothing is replaced."""
    if "\\" in pattern:
        return re.sub(r"\\(\\?)", r"\1", pattern)
    values = {"%": "%", "A": str(job), "a": str(index), "j": str(job), "x": "NAME", "u": "USER"}
    return re.sub("%(.)", lambda found: values.get(found[1], found[0]), pattern)


def indices(text: str) -> list[int]:
    """Returns the indices that an array option names: "1-3,5%2" gives [1, 2, 3, 5]."""
    found = []
    for part in text.split("%")[0].split(","):
        first, _, last = part.partition("-")
        found += list(range(int(first), int(last or first) + 1))
    return found


def add(
    folder: Path,
    kind: str,
    name: str,
    script: str,
    array: list[int] | None,
    after: list[str],
    nodes: int,
    output: str,
    cluster: str = "",
) -> int:
    """Adds a pending job. Copies its script and the caller's environment, as schedulers do. Returns the job's number.

    after: ids of the elements or jobs that must succeed before. output: the job's log, with place-holders. cluster:
    empty for the cluster of this host.
    """
    number = 1 + max((int(re.search(r"\d+", p.name)[0]) for p in folder.glob("job-*.json")), default=100)
    copy = folder / f"script-{number}.sh"
    copy.write_text(script, encoding="utf-8")
    record = {
        "id": number,
        "kind": kind,
        "name": name,
        "cluster": cluster,
        "script": str(copy),
        "array": array is not None,
        "after": after,
        "nodes": nodes,
        "folder": str(folder),
        "output": output,
        "environment": dict(os.environ),
        "states": {str(index): "PENDING" for index in (array or [1])},
    }
    save(folder, record)
    return number
