"""The parts of a visit, in the order of their value. Each leaves its texts in the folder and returns one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import host
from .ctest import GpuTest
from .schedule import Estimate
from .visit import CannotRun, PartFailed, Visit


@dataclass(frozen=True)
class Part:
    """`run` returns the reason column of a good part. Errors: PartFailed, CannotRun."""

    estimate: Estimate
    about: str
    run: Callable[[Visit], str]


def doctor(visit: Visit) -> str:
    """What is here, what is missing."""
    done = visit.run("doctor", [visit.program("hvd_bench"), "doctor"])
    if done.code != 0:
        raise PartFailed(done.last_line())
    return done.last_line()


def devices(visit: Visit) -> str:
    """The GPU's properties, for plans without a GPU."""
    if visit.gpu is None:
        raise CannotRun("no GPU")
    program = visit.program("cudnn_device")
    name = f"devices/{visit.gpu.file_name()}"
    done = visit.run(name, [program])
    if done.code != 0:
        raise PartFailed(done.last_line())
    try:
        properties = json.loads(done.output[done.output.index("{") :])
    except ValueError as error:
        raise PartFailed(f"what cuDNN said is no JSON: {error}") from None
    file = visit.out / f"{name}.json"
    file.write_text(json.dumps(properties, indent=1) + "\n", encoding="utf-8")
    return f"{file.name}: {properties.get('deviceName', 'a GPU without a name')}"


def _cases(report: Path) -> tuple[int, int, list[str]]:
    """Passed, skipped, and the names of the failed cases of a GoogleTest report."""
    passed, skipped, failed = 0, 0, []
    for suite in json.loads(report.read_text(encoding="utf-8"))["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                failed.append(f"{suite['name']}.{case['name']}")
            elif case.get("result") == "SKIPPED":
                skipped += 1
            else:
                passed += 1
    return passed, skipped, failed


def _run_test(visit: Visit, test: GpuTest) -> tuple[int, int, list[str]]:
    report = visit.out / "tests" / f"{test.name}.json"
    report.unlink(missing_ok=True)
    environment = {**test.environment, "GTEST_OUTPUT": f"json:{report}"}
    done = visit.run(f"tests/{test.name}", test.command, seconds=test.seconds, environment=environment)
    if done.code is None:
        return 0, 0, [f"{test.name} (no end in {done.seconds:.0f} s)"]
    try:
        passed, skipped, failed = _cases(report)
    except (OSError, ValueError, KeyError):
        return 0, 0, [f"{test.name} (exit code {done.code}: {done.last_line()})"]
    if done.code != 0 and not failed:
        failed = [f"{test.name} (exit code {done.code})"]
    return passed, skipped, failed


def _counts(results: list[tuple[int, int, list[str]]]) -> str:
    """Errors: PartFailed if a case failed, CannotRun if all were skipped."""
    passed, skipped = sum(r[0] for r in results), sum(r[1] for r in results)
    failed = [name for r in results for name in r[2]]
    text = f"{passed} passed, {len(failed)} failed, {skipped} skipped"
    if failed:
        raise PartFailed(f"{text}: {', '.join(failed[:3])}{', ...' if len(failed) > 3 else ''}")
    if passed == 0:
        raise CannotRun(text)
    return text


def gpu_tests(visit: Visit) -> str:
    """The tests of label gpu."""
    tests = visit.place.gpu_tests()
    if not tests:
        raise CannotRun("this build has no tests of label gpu")
    return _counts([_run_test(visit, test) for test in tests])


def sanitizer(visit: Visit) -> str:
    """compute-sanitizer over the kernels' tests; over all of label gpu where none is named so."""
    if visit.gpu is None:
        raise CannotRun("no GPU")
    if visit.sanitizer is None:
        raise CannotRun("there is no compute-sanitizer (it comes with the CUDA toolkit)")
    tests = visit.place.gpu_tests()
    chosen = [test for test in tests if "kernel" in test.name] or tests
    results = []
    for test in chosen:
        # Inside the launcher of a bundle the program is a child, which the tool follows by itself.
        command = [visit.sanitizer, "--target-processes", "all", "--error-exitcode", "9", *test.command]
        checked = GpuTest(f"sanitizer-{test.name}", command, 10 * test.seconds, test.environment)
        results.append(_run_test(visit, checked))
    return _counts(results)


def comparison(dtype: str, variants: tuple[str, ...], name: str) -> Callable[[Visit], str]:
    """Training speed beside PyTorch's in one type, one network after the other."""

    def run(visit: Visit) -> str:
        if dtype not in visit.sizes.dtypes:
            raise CannotRun(f"{dtype} is for the GPU alone")
        bench, python = visit.program("train_step_bench"), visit.python()
        said, troubles, missing = [], [], []
        for index, model in enumerate(visit.sizes.models):
            stem = f"{name}-{model}"
            file = visit.out / f"{stem}.json"
            command = [python, str(visit.place.peers() / "compare_gpu.py"), "--bench", bench, "--models", model]
            command += ["--dtypes", dtype, "--variants", *variants, "--device", visit.sizes.device]
            command += ["--json", str(file), "--log", str(visit.out / f"{stem}.log"), *visit.sizes.comparison]
            before = host.gpu_state()
            # PyTorch finds its libraries itself; ours is told where to look.
            options = ["--library-path", visit.environment.get("LD_LIBRARY_PATH", "")]
            seconds = visit.share(len(visit.sizes.models) - index)
            done = visit.run(stem, command + options, seconds=seconds, ours=False)
            visit.note(f"{stem}: {before} | {host.gpu_state()}")
            if done.code not in (0, 3):
                why = "its share of the time was over" if done.code is None else _trouble(file) or done.last_line()
                troubles.append(f"{model}: {why}")
                continue
            ratio, gone = _ratio(file)
            said.append(f"{model} {ratio}")
            missing += gone
        if troubles:
            raise PartFailed("; ".join(troubles + said))
        note = f" ({'; '.join(dict.fromkeys(missing))})" if missing else ""
        return ", ".join(said) + note

    return run


def _trouble(file: Path) -> str:
    try:
        (row,) = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return "; ".join(row["troubles"])


def _ratio(file: Path) -> tuple[str, list[str]]:
    """ "1.23 x" of a comparison's only row, and the peer's variants that are missing."""
    (row,) = json.loads(file.read_text(encoding="utf-8"))
    return f"{row['ratio']['ratio']:.2f} x", row["missing_variants"]


def _hvd_bench(visit: Visit, model: str) -> list[str]:
    """A command line's beginning: the network, where and in what type."""
    program, sizes = visit.program("hvd_bench"), visit.sizes
    return [program, "--model", model, "--device", sizes.device, "--dtype", sizes.training_type]


def training(visit: Visit) -> str:
    """hvd_bench as a user runs it, into one store."""
    sizes, said, troubles = visit.sizes, [], []
    for model in sizes.models:
        command = _hvd_bench(visit, model)
        command += [*sizes.training, "--db", str(visit.out / "gpu_check.db"), "--label", "by=gpu_check"]
        done = visit.run(f"train-{model}", command)
        speed = re.search(r"total images/sec: ([0-9.]+)", done.output)
        if done.code != 0 or speed is None:
            troubles.append(f"{model}: {done.last_line()}")
        else:
            said.append(f"{model} {float(speed[1]):.0f} img/s")
    if troubles:
        raise PartFailed("; ".join(troubles + said))
    return ", ".join(said)


def replay(visit: Visit) -> str:
    """When each gradient became ready, for --replay and predictions."""
    sizes, files, troubles = visit.sizes, [], []
    (visit.out / "replay").mkdir(exist_ok=True)
    for model in sizes.models:
        file = visit.out / "replay" / f"{model}-{sizes.training_type}.txt"
        command = [*_hvd_bench(visit, model), *sizes.replay, "--record-replay", str(file)]
        done = visit.run(f"record-{model}", command)
        if done.code != 0 or not file.exists():
            troubles.append(f"{model}: {done.last_line()}")
        else:
            files.append(file.name)
    if troubles:
        raise PartFailed("; ".join(troubles))
    return ", ".join(files)


FAST = ("eager", "graph")
PARTS = [
    Part(Estimate("doctor", 15, 60), "hvd_bench doctor", doctor),
    Part(Estimate("devices", 10, 60), "device properties, as tests/cudnn/devices has them", devices),
    Part(Estimate("tests", 60, 400), "the tests of label gpu", gpu_tests),
    Part(Estimate("peers-fp16", 360, 900), "three networks in fp16 beside PyTorch", comparison("fp16", FAST, "fp16")),
    Part(Estimate("train", 90, 300), "three networks into one store", training),
    Part(Estimate("replay", 45, 200), "replay profiles", replay),
    Part(Estimate("peers-bf16", 360, 900), "the same in bf16", comparison("bf16", FAST, "bf16")),
    Part(Estimate("sanitizer", 120, 600), "compute-sanitizer over the kernels' tests", sanitizer),
    Part(Estimate("peers-tf32", 420, 900), "the same in tf32", comparison("tf32", FAST, "tf32")),
    Part(
        Estimate("compile", 900, 1500),
        "fp16 beside torch.compile (max-autotune), which compiles for minutes",
        comparison("fp16", ("graph", "compile"), "compile"),
    ),
]
REHEARSED = Part(Estimate("peers-fp32", 60, 300), "fp32, on a CPU alone", comparison("fp32", ("eager",), "fp32"))
