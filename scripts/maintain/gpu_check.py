"""Runs a visit to a GPU host: checks, measurements, and comparisons with PyTorch (docs/gpu_check.md).

    gpu_check RESULTS --call 1|2|3     runs a third of the visit in nine minutes, then what earlier calls lack
    gpu_check RESULTS [PART...]        runs these parts, or whatever is missing
    gpu_check RESULTS --several        runs what needs several GPUs, on a host that has them

A visit needs no network and installs nothing. A part that fails, hangs or cannot run does not stop the others. Finished
parts are kept however the call ends, and a later call with the same folder goes on after them.

Exit code: 0 all good, 1 a part failed, 2 usage or output, 3 something did not run (GPU, time, PyTorch), 7 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from hvdb.base import whole_file
from hvdb.base.process import end_in_order_when_told, end_with_parent

ROOT = Path(__file__).resolve().parents[2]  # a bundle or a checkout
CALL_MINUTES, CLOSING_SECONDS = 9.0, 15.0  # of a call on a host that ends commands after ten minutes; for the archive
# The comparison with PyTorch. scripts/maintain/bundle lists the files that it needs.
TORCH_GPU = "env HVD_PYTHON={torch} {root}/scripts/maintain/peers torch-gpu --python {torch}"
GPU_TESTS = ("gpu_cuda_test", "comm_nccl_gpu_test", "device_engine_gpu_test", "cudnn_kernels_gpu_test")
GPU_TESTS += ("cudnn_step_gpu_test", "cudnn_shared_gpu_gpu_test")  # all tests of label gpu
LACKS = {"nccl_2_30": "NCCL 2.30 or newer (--nccl)", "torch": "Python with PyTorch 2 and torchvision (HVD_PYTHON)"}
GOOD, FAILED, CANNOT, CUT, NOT_YET = "good", "FAILED", "cannot run", "cut off", "not yet"
NOTHING_TO_MEASURE, LOST_RANK, OUT_OF_MEMORY = 3, 5, 8  # exit codes of our programs and of the comparison
NCCL_2_30 = 23000  # the first NCCL that lets two ranks share a GPU, as ncclGetVersion() gives it
PYTHONS = ("python3", "/usr/bin/python3", "/opt/conda/bin/python3", "/opt/venv/bin/python3")
LIBRARIES = re.compile(r"lib(cudnn|nccl|cublasLt|nvrtc)\.so\.\d")
WHEELS = ("nvidia/*/lib", "nvidia/lib", "torch/lib")  # in a Python's site-packages
TOOLKITS = ("usr/local/cuda*/lib64", "usr/local/cuda*/targets/sbsa-linux/lib", "opt/nvidia/*/lib64")
TOOLKITS += ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu")
# What a command must print. The table shows this text, or its group.
SPEED = r"total images/sec: ([0-9.]+)|: ([0-9.]+) img/s \(median"
TESTED = r"PASSED  \] ([1-9]\d* tests?)"
NONE_SKIPPED = rf"{SPEED}|{TESTED}\.\s*\Z"  # skipped tests are listed below this line
RATIO = r"[0-9.]+ x .* beside .*"
STATED = r'fit to measure.*|"deviceName": "([^"]*)'

MODELS = ("resnet101", "vgg16", "inception3")
TRAIN = "{hvd_bench} --device cuda --model {model} --dtype {dtype}"
STORED = f"{TRAIN} --db {{out}}/gpu_check.db --label by=gpu_check --label part={{part}}"
TUNED = f"{STORED} --max-time 10 --tune --tuning-folder {{out}}/winners --batch-size"
LAUNCH = f"{STORED} --batch-size 32 --num-warmup-batches 10 --num-iters 100 --max-time 20 --label way="
LAUNCHES = {"graph": f"{LAUNCH}graph", "waited": f"{LAUNCH}waited --no-launch-ahead"}
LAUNCHES["enqueued"] = f"{LAUNCH}enqueued --no-cuda-graph"
REPLAY = f"{TRAIN} --batch-size 64 --num-warmup-batches 10 --num-iters 30 --max-time 30 --no-db"
REPLAY += " --record-replay {out}/{part}.replay"
REPLAYED = "{hvd_bench} --device cuda --replay {out}/{part}.replay --num-iters 30 --max-time 30 --no-db"
STEP = "{train_step_bench} --device cuda --winners {out}/winners --model {model} --dtype {dtype}"
# The ways to read images alternate: an earlier measurement misled, because the loss of VGG-16 had collapsed.
IMAGES = enumerate(("columns", "padded", "padded", "columns"))
CHOICES = {f"{number}-{way}": f"{STEP} --batch 256 --steps 60 --images {way}" for number, way in IMAGES}
SWEEP = {batch: f"{STEP} --steps 40 --batch {batch}" for batch in ("64", "128", "384", "512")}
# Both sides train at one batch, which fits twice into 80 GB. PyTorch times ten algorithms per convolution, its default.
SIDES = f"{TORCH_GPU} --first-variant-only --batches 256 --benchmark-limit 10 --compile-cache {{out}}.torch"
TURNS = f"{SIDES} --models {{model}} --dtypes {{dtype}} --bench {{train_step_bench}} --seconds {{left}}"
TURNS += " --turns 16 --turn-seconds 0.5 --winners {out}/winners --library-path {libraries}"
TURNS += " --json {out}/{part}.json --clocks {out}/{part}.clocks.csv"
QUICK = {"": f"{TURNS} --variants compile graph --compile-seconds 180"}
AUTOTUNE = {"": f"{TURNS} --variants autotune --compile-seconds 300"}
# Beside the tests torch.compile fills its cache. PyTorch starts first, so `false` in place of our side ends the run.
COMPILE = f"timeout 140 {SIDES} --bench false --variants compile --memory-fraction 0.28 --dtypes fp16 bf16"
AHEAD = {f"ahead-{m}": f"{COMPILE} {t} --models {m}" for m, t in zip(MODELS, ("tf32", "", ""), strict=True)}
TESTS = {test: f"{{{test}}}" for test in GPU_TESTS if test != "comm_nccl_gpu_test"}  # that one needs two ranks
TWO_RANKS = "{mpirun} -n 2 {hvd_bench} --model resnet50 --device cuda --dtype fp16 --batch-size 32 --no-db --comm nccl"
TWO_RANKS += " --share-gpus --nccl-max-ctas 4 --num-warmup-batches 10"
STOPPED, KILLED = "stopped-rank", "killed-rank"
FAULTS = {STOPPED: signal.SIGSTOP, KILLED: signal.SIGKILL}  # label -> what rank 1 of the command gets
MEASURES = "measuring full: step"  # it gets this when the command has printed this
SHARED = {test: f"{{{test}}}" for test in GPU_TESTS if "nccl" in test or "engine" in test}
ENDLESS = "--num-iters 1000000 --max-time 600 --no-check --startup-deadline-seconds 60 --deadline-seconds 15"
SHARED |= {"two-ranks": f"{TWO_RANKS} --num-iters 30 --max-time 20", STOPPED: f"{TWO_RANKS} {ENDLESS}"}
OURS = {"LD_LIBRARY_PATH": "{libraries}"}
NCCL = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_DEBUG": "WARN"}
NCCL |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
NCCL["LD_LIBRARY_PATH"] = "{nccl_2_30}:{libraries}"
# Commands for a host with several GPUs. mpirun binds no rank, so that NCCL can run its threads near the rank's GPU.
BANDWIDTH, EFFICIENCY = r"# Avg bus bandwidth *: ([0-9.e+]+)", rf"(?s:.*)efficiency ([0-9.]+ % \[.*?\])|{SPEED}"
RANKS = "{mpirun} -n %s --bind-to none {hvd_bench}"
SIZES, ONE_SIZE = "-b 1K -e 256M -f 4", "-b 8K -e 8K -G 20"
COLL = f"{RANKS % '{gpus}'} coll --device cuda -J {{out}}/coll"
OURS_SIZES = {"sizes": f"{COLL}.json {SIZES}", "graph": f"{COLL}-graph.json {ONE_SIZE}"}
THEIRS = "{all_reduce_perf} -g {gpus} -c 1 -w 20 -n 100"
# Our program also runs after nccl-tests, which shows whether the machine changed meanwhile.
BESIDE = {"sizes": f"{THEIRS} {SIZES}", "graph": f"{THEIRS} {ONE_SIZE}", "coll": f"{COLL}-after.json {SIZES}"}
SCALING = f"{RANKS} --device cuda --model {{model}} --dtype {{dtype}} --db {{out}}/gpu_check.db"
SCALING += " --label by=gpu_check --label part={part} --max-time 90"
COUNTS = {"1": SCALING % 1} | {str(ranks): f"{SCALING % ranks} --efficiency" for ranks in (2, 4, 8)}
LOSES = f"{RANKS % '{gpus}'} --model resnet50 --device cuda --dtype fp16 --batch-size 32 --no-db {ENDLESS}"
SEVERAL_GPUS = {**OURS, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# Seconds that mpirun gives the other ranks after a rank was killed: of Open MPI 4, and of 5.
SEVERAL_GPUS |= {"OMPI_MCA_odls_base_sigkill_timeout": "10", "PRTE_MCA_odls_base_sigkill_timeout": "10"}
SANITIZE = "{compute-sanitizer} --tool %s --target-processes all --error-exitcode 9 {cudnn_kernels_gpu_test}"
SANITIZERS = {tool: SANITIZE % tool for tool in ("memcheck", "racecheck", "initcheck", "synccheck")}


class CannotRun(Exception):
    """The host lacks something that the part needs."""


class Words(dict[str, str]):
    """What the names in braces in a command stand for. A name that is not set is a program, looked for when needed."""

    def __missing__(self, name: str) -> str:
        places = [ROOT / build / kind for build in ("", "build/cuda", "build/release") for kind in ("bin", "tests")]
        places += [os.environ.get("PATH", ""), *Path("/usr/local").glob("cuda*/bin")]
        path = ":".join(map(str, places))
        if program := shutil.which(name, path=path):
            return program
        raise CannotRun(f"there is no {LACKS.get(name, name)} here")


@dataclass(frozen=True)
class Part:
    """A line of the table: commands that run one after another, or all at once."""

    name: str  # also begins the names of the part's files
    call: int
    estimate: float  # seconds
    limit: float  # seconds
    commands: dict[str, str]  # label -> command
    said: str = SPEED  # the expression that each command must print
    environment: dict[str, str] = field(default_factory=OURS.copy)
    at_once: bool = False
    dtype: str = ""
    model: str = ""


def for_cells(cells: str, part: Part) -> list[Part]:
    """Returns `part` for all cells: "fp16,bf16 vgg16" means VGG-16 in both types, and "fp16" all networks in fp16."""
    dtypes, _, models = cells.partition(" ")
    pairs = [(dtype, model) for dtype in dtypes.split(",") for model in (models.split(",") if models else MODELS)]
    return [replace(part, name=f"{part.name}-{dtype}-{model}", dtype=dtype, model=model) for dtype, model in pairs]


# Call by call, the most valuable part first. docs/gpu_check.md says where the estimates come from.
PARTS = [
    Part("devices", 1, 1, 60, {"": "{cudnn_device}"}, STATED),
    Part("doctor", 1, 2, 60, {"": "{hvd_bench} doctor"}, STATED),
    *for_cells("fp16", Part("launch", 1, 15, 180, LAUNCHES)),
    *for_cells("fp16 resnet50", Part("train", 1, 50, 300, {"256": f"{TUNED} 256", "400": f"{TUNED} 400"})),
    *for_cells("fp16,bf16", Part("train", 1, 10, 120, {"": f"{TUNED} 256"})),
    *for_cells(
        "fp16,bf16", Part("profile", 1, 4, 60, {"": f"{STEP} --batch 256 --steps 8 --profile --profile-rows 1000"})
    ),
    *for_cells("fp16", Part("replay", 1, 8, 90, {"": REPLAY, "replayed": REPLAYED})),
    *for_cells("bf16 vgg16", Part("choices", 1, 20, 90, CHOICES)),
    Part("nccl", 1, 100, 270, SHARED, NONE_SKIPPED, NCCL),
    Part("tests", 1, 150, 400, TESTS | AHEAD, TESTED, at_once=True),
    Part("sanitizers", 1, 45, 300, SANITIZERS, TESTED),
    *for_cells("bf16 resnet101", Part("autotune", 2, 270, 400, AUTOTUNE, RATIO, {})),
    *for_cells("fp16", Part("quick", 2, 45, 300, QUICK, RATIO, {})),
    *for_cells("bf16 vgg16,inception3", Part("quick", 2, 45, 300, QUICK, RATIO, {})),
    *for_cells("fp16", Part("sweep", 3, 35, 180, SWEEP)),
    *for_cells("tf32", Part("train", 3, 15, 120, {"": f"{TUNED} 256"})),
    *for_cells("bf16 vgg16", Part("autotune", 3, 270, 400, AUTOTUNE, RATIO, {})),
    *for_cells("tf32,bf16 resnet101", Part("quick", 3, 45, 300, QUICK, RATIO, {})),
]
SEVERAL = 4  # in place of a call
# What needs several GPUs, on a host that has them for as long as it takes.
PARTS_OF_SEVERAL = [
    *PARTS[:2],
    Part("several-tests", SEVERAL, 60, 600, {test: f"{{{test}}}" for test in GPU_TESTS[1:3]}, NONE_SKIPPED),
    Part("several-coll", SEVERAL, 120, 900, OURS_SIZES, BANDWIDTH),
    Part("several-nccl-tests", SEVERAL, 140, 900, BESIDE, BANDWIDTH),
    *for_cells("fp16", Part("several", SEVERAL, 360, 1800, COUNTS, EFFICIENCY)),
    Part("several-faults", SEVERAL, 90, 400, {KILLED: LOSES, STOPPED: LOSES}),
]
PARTS_OF_SEVERAL[2:] = [replace(part, environment=SEVERAL_GPUS) for part in PARTS_OF_SEVERAL[2:]]


def send(number: int, leader: int, having: bytes = b"") -> None:
    """Sends a signal to the processes of `leader`'s session whose environment contains `having`."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended
            session = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[3])
            if session == leader and having in (folder / "environ").read_bytes():
                os.kill(int(folder.name), number)


def run(part: Part, words: Words, ends: float) -> list[tuple[str, int | None, str]]:
    """Runs the commands until `ends` on the monotonic clock, and stores their output. Returns label, exit code (None:
    ended here) and output of each command. Errors: CannotRun, OSError."""
    lines = {n: shlex.split(line) for n, line in part.commands.items() if "torch" in words or not n.startswith("ahead")}
    commands = {n: [word.format_map(words) for word in line] for n, line in lines.items()}
    environment = {**os.environ, **{n: value.format_map(words) for n, value in part.environment.items()}}
    logs = {n: Path(words["out"], f"{part.name}{n and '-'}{n}.txt") for n in commands}
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        while time.monotonic() < ends:
            running = [n for n, process in started.items() if process.poll() is None]
            waiting = [n for n in commands if n not in started]
            if not running and not waiting:
                break
            for n in waiting if part.at_once else waiting[: not running]:
                with logs[n].open("w") as log:
                    print("$", shlex.join(commands[n]), file=log, flush=True)
                    pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
                    child = {"env": environment, "start_new_session": True, "preexec_fn": end_with_parent}
                    started[n] = subprocess.Popen(commands[n], **pipes, **child)
            for n in filter(FAULTS.get, running):
                if MEASURES in logs[n].read_text(errors="replace"):
                    send(FAULTS[n], started[n].pid, b"OMPI_COMM_WORLD_RANK=1\0")
            time.sleep(0.05)
    finally:
        codes = {n: process.poll() for n, process in started.items()}
        for number in (signal.SIGTERM, signal.SIGKILL):  # also to children that a command has left
            for process in started.values():
                send(number, process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in started.values():
                    process.wait(5)
    return [(n, codes.get(n), logs[n].read_text(errors="replace") if n in codes else "") for n in commands]


def judge(part: Part, done: list[tuple[str, int | None, str]]) -> tuple[str, str]:
    """Returns the worst result of the commands, and the texts of the commands with this result."""
    texts: dict[str, list[str]] = {}
    for label, code, output in (command for command in done if not command[0].startswith("ahead")):
        match = re.search("error.*rank 1.*" if label in FAULTS else part.said, output)
        good = code in ((LOST_RANK,) if label == STOPPED else (0, NOTHING_TO_MEASURE))
        if label == KILLED:  # the code is mpirun's
            good = code not in (0, None)
        if match and good:
            result, text = GOOD, match[match.lastindex or 0]
        elif code == OUT_OF_MEMORY and part.name.startswith("sweep") and "memory" in output:
            result, text = GOOD, "no memory"
        else:
            result = CANNOT if code in (0, NOTHING_TO_MEASURE) else FAILED
            last = output.rstrip().rpartition("\n")[2].strip()[:200]
            text = f"{'no end in time' if code is None else f'exit code {code}'}: {last}"
        texts.setdefault(result, []).append(f"{label} {text}".strip())
    worst = next(result for result in (FAILED, CANNOT, GOOD) if result in texts)
    return worst, "; ".join(texts[worst])


def run_part(part: Part, words: Words, left: float) -> tuple[str, str]:
    """Runs a part for at most `left` seconds. Returns the result and the reason. Raises only KeyboardInterrupt."""
    seconds = min(part.limit, left)
    ends = time.monotonic() + seconds
    own = {"part": part.name, "dtype": part.dtype, "model": part.model, "left": f"{seconds:.0f}"}
    try:
        result, text = judge(part, run(part, Words({**words, **own}), ends))
    except CannotRun as error:
        return CANNOT, str(error)
    except Exception as error:  # the other parts still run
        return FAILED, f"{type(error).__name__}: {error}"
    return CUT if result == FAILED and seconds < part.limit and time.monotonic() >= ends else result, text


def says(*command: str) -> str:
    """Returns the standard output of a command; "" if it fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    return ""


def first_python(modules: str) -> tuple[str, str]:
    """Returns the first Python that can import `modules`, and the version of its PyTorch; "" if there is none."""
    asked = ("-c", f"import {modules}; print(torch.__version__)")
    tried = ((python, says(python, *asked)) for python in (sys.executable, *PYTHONS))
    return next(((python, version) for python, version in tried if version), ("", ""))


def gpu_count() -> int:
    """Returns the number of GPUs that a process may use here."""
    there = len(says("nvidia-smi", "--list-gpus").splitlines())
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len(list(filter(None, visible.split(",")))))


def nccl_version(folder: str) -> int:
    """Returns the version of the NCCL in `folder` as ncclGetVersion() gives it: 23007 is 2.30.7. 0: no NCCL."""
    version = ctypes.c_int()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(f"{folder}/libnccl.so.2").ncclGetVersion(ctypes.byref(version))
    return version.value


def find_host(options: argparse.Namespace, out: Path) -> tuple[Words, dict[str, object]]:
    """Returns the words of this host, and facts for machine.json."""
    words = Words(root=str(ROOT), out=str(out))
    python, torch = first_python("torch, torchvision")
    if python:
        words["torch"] = python
    else:  # our programs can use the libraries of a PyTorch without torchvision
        python, torch = first_python("torch")
    sites = says(python or sys.executable, "-c", "import sys; print(*filter(None, sys.path), sep='\\n')")
    # The libraries of PyTorch come first, so that both sides of a comparison use the same.
    places = [place for site in sites.splitlines() for wheel in WHEELS for place in Path(site).glob(wheel)]
    places += [place for toolkit in TOOLKITS for place in sorted(Path("/").glob(toolkit), reverse=True)]
    libraries = {str(p): sorted(filter(LIBRARIES.match, os.listdir(p))) for p in places if p.is_dir()}
    folders = [folder for folder, names in libraries.items() if names]
    words["libraries"] = ":".join([*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    if options.nccl and options.nccl.is_file():  # a wheel
        shutil.unpack_archive(options.nccl, f"{out}.nccl", "zip")
        options.nccl = Path(f"{out}.nccl/nvidia/nccl/lib")
    nccl = {folder: nccl_version(folder) for folder in ([str(options.nccl)] if options.nccl else folders)}
    words.update(next(({"nccl_2_30": folder} for folder in nccl if nccl[folder] >= NCCL_2_30), {}))
    commit = says("cat", f"{ROOT}/commit") or says("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    system = {"commit": commit, "kernel": os.uname().release, "processors": len(os.sched_getaffinity(0))}
    return words, {**system, "python": python or None, "torch": torch, "nccl": nccl, "libraries": libraries}


def earlier_calls(out: Path, gpu: list[str]) -> tuple[list[dict], dict[str, dict]]:
    """Returns the calls in machine.json and the rows of summary.json. Errors: ValueError for a stranger's folder."""
    machine, summary = out / "machine.json", out / "summary.json"
    if not machine.exists():
        if any(not whole_file.is_unfinished(file) for file in out.iterdir()):
            raise ValueError(f"{out} is not empty, and not of an earlier call: name another folder")
        return [], {}
    calls = json.loads(machine.read_text(encoding="utf-8"))
    if list(there := calls[-1]["gpu"])[:2] != gpu[:2]:
        raise ValueError(f"{out} has results of another GPU ({', '.join(there)}): name another folder")
    rows = json.loads(summary.read_text(encoding="utf-8")) if summary.exists() else []
    return calls, {row["part"]: row for row in rows}


def table(out: Path, rows: dict[str, dict]) -> str:
    """Writes summary.json and summary.txt. Returns the text of the latter."""
    width = max(map(len, rows))
    lines = [f"{'part':<{width}}  result      seconds  estimate  reason"]
    for row in rows.values():
        times = f"{row['seconds']:>7.0f}  {row['estimate_seconds']:>8.0f}"
        lines.append(f"{row['part']:<{width}}  {row['result']:<10}  {times}  {row['reason']}".rstrip())
    if missing := [row["part"] for row in rows.values() if row["result"] not in (GOOD, FAILED)]:
        lines.append(f"missing: {', '.join(missing)}; gpu_check with this folder runs what is missing")
    whole_file.write_text(out / "summary.json", json.dumps(list(rows.values()), indent=1) + "\n")
    whole_file.write_text(out / "summary.txt", "\n".join(lines) + "\n")
    return "\n".join(lines)


def say(text: str) -> None:
    """Prints `text`. The visit goes on if nobody reads."""
    with contextlib.suppress(OSError):
        print(time.strftime("%H:%M:%S"), text, flush=True)


def visit(options: argparse.Namespace, parts: list[Part], ends: float) -> int:
    """Runs the unfinished parts that fit until `ends`. Returns the exit code. Errors: OSError, ValueError."""
    query = "--query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit"
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    gpu = says("nvidia-smi", f"--id={device}", query, "--format=csv,noheader").split(", ")
    if len(gpu) < 2:
        print("gpu_check: no GPU: nvidia-smi shows none; nothing was run", file=sys.stderr)
        return 3
    gpus = gpu_count()
    if options.several and gpus < 2:
        print(f"gpu_check: --several needs two GPUs or more, and here is {gpus}; nothing was run", file=sys.stderr)
        return 3
    out = options.directory.resolve()
    out.mkdir(parents=True, exist_ok=True)
    calls, rows = earlier_calls(out, gpu)
    words, facts = find_host(options, out)
    words["gpus"] = str(gpus)
    for i, part in enumerate(parts):
        if part.call == SEVERAL:  # without the numbers of ranks that this host has no GPUs for
            fitting = {n: line for n, line in part.commands.items() if not n.isdigit() or int(n) <= gpus}
            parts[i] = replace(part, commands=fitting)
    begun = {"started_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "arguments": sys.argv[1:]}
    calls.append({**begun, "gpu": gpu, **facts})
    whole_file.write_text(out / "machine.json", json.dumps(calls, indent=1) + "\n")
    whole_file.write_text(out / "nvidia-smi.txt", says("nvidia-smi", "-q") + says("nvidia-smi", "topo", "-m"))
    (out / "winners").mkdir(exist_ok=True)
    if options.winners:
        shutil.copytree(options.winners, out / "winners", dirs_exist_ok=True)
    for part in parts:
        new = {"part": part.name, "result": NOT_YET, "seconds": 0, "estimate_seconds": part.estimate, "reason": ""}
        rows.setdefault(part.name, new)
    interrupted = False
    try:
        for part in parts:
            row, left, started = rows[part.name], ends - time.monotonic(), time.monotonic()
            if row["result"] in (GOOD, FAILED) or left < part.estimate:
                continue
            row |= {"result": CUT, "reason": "gpu_check ended while it ran", "call": len(calls)}
            table(out, rows)
            say(f"{part.name}: about {part.estimate} s")
            row["result"], row["reason"] = run_part(part, words, left)
            row["seconds"] = time.monotonic() - started
            say(f"{part.name}: {row['result']}: {row['reason']}")
    except KeyboardInterrupt:
        interrupted = True
    say(table(out, rows))
    say(f"{shutil.make_archive(str(out), 'gztar', out.parent, out.name)}: what to take home")
    results = {rows[part.name]["result"] for part in parts}
    return 7 if interrupted else 1 if FAILED in results else 0 if results == {GOOD} else 3


def plan() -> str:
    """Returns every call's command and its parts with their estimates."""
    lines = []
    for call in (1, 2, 3):
        parts = [part for part in PARTS if part.call == call]
        total = round(sum(part.estimate for part in parts) + CLOSING_SECONDS)
        lines.append(f"scripts/maintain/gpu_check results --call {call}: about {total // 60}:{total % 60:02} of 9:00")
        lines += [f"  {part.name:<26}{part.estimate:>4} s, at most {part.limit} s" for part in parts]
    total = round(sum(part.estimate for part in PARTS_OF_SEVERAL))
    lines.append(f"scripts/maintain/gpu_check results --several: about {total // 60} minutes on 8 GPUs")
    lines += [f"  {part.name:<26}{part.estimate:>4} s, at most {part.limit} s" for part in PARTS_OF_SEVERAL]
    return "\n".join(lines)


def main() -> int:
    """Runs the command line. Returns the exit code."""
    parser = argparse.ArgumentParser("gpu_check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, help="where results go", metavar="RESULTS")
    parser.add_argument("parts", nargs="*", metavar="PART", help="also a pattern: 'quick-fp16-*' (default: all)")
    parser.add_argument("--call", type=int, choices=(1, 2, 3), help="this call of a visit of three")
    parser.add_argument("--several", action="store_true", help="on a host with several GPUs: what needs them")
    parser.add_argument("--minutes", type=float, help="end by then (default: 9 with --call, else no limit)")
    parser.add_argument("--plan", action="store_true", help="print the visit call by call, and stop")
    parser.add_argument("--winners", type=Path, metavar="FOLDER", help="winners/ of an earlier visit, to tune less")
    parser.add_argument("--nccl", type=Path, help="NCCL 2.30 or newer: a folder with libnccl.so.2, or a wheel")
    options = parser.parse_intermixed_args()
    if options.several and options.call:
        parser.error("--several is no call of a visit: leave out --call")
    parts = PARTS_OF_SEVERAL if options.several else [part for part in PARTS if part.call <= (options.call or 3)]
    parts = sorted(parts, key=lambda part: part.call != options.call)
    for pattern in options.parts:
        if not fnmatch.filter([part.name for part in parts], pattern):
            parser.error(f"no part '{pattern}' in this call: --plan prints them")
    parts = [part for part in parts if any(fnmatch.fnmatch(part.name, pattern) for pattern in options.parts or ["*"])]
    for given in filter(None, (options.winners, options.nccl)):
        if not given.exists():
            parser.error(f"there is no {given}")
    if not (options.directory or options.plan) or not (options.minutes is None or options.minutes > 0):
        parser.error("name a folder for the results, and --minutes above 0")
    minutes = options.minutes or (CALL_MINUTES if options.call else float("inf"))
    end_in_order_when_told()  # keeps results as after Ctrl-C
    try:
        if options.plan:
            print(plan())
            return 0
        return visit(options, parts, time.monotonic() + 60 * minutes - CLOSING_SECONDS)
    except KeyboardInterrupt:
        print("gpu_check: interrupted; what is finished stays in the folder", file=sys.stderr)
        return 7
    except (OSError, ValueError, LookupError) as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
