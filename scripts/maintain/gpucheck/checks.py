"""The parts of gpu_check that check the host, store the GPU's properties, and run tests, also in compute-sanitizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import commands, host
from .comparing import compile_ahead
from .ctest import GpuTest
from .visit import CannotRun, PartFailed, Visit
from hvdb import whole_file

# Bytes of GPU memory that torch.compile may use for a network at the quick comparisons' batch, and bytes that are
# reserved for each such compilation beside the tests.
_PEER_MEMORY, _PEER_ROOM = 21e9, 24e9
NO_TESTS = "this build has no tests of label gpu"


def doctor(visit: Visit) -> str:
    """Runs hvd_bench doctor, which lists what the host has and what is missing."""
    done = visit.run("doctor", [visit.program("hvd_bench"), "doctor"])
    if done.code != 0:
        raise PartFailed(done.last_line())
    return done.last_line()


def devices(visit: Visit) -> str:
    """Stores the GPU's properties, from which a machine without this GPU can make plans."""
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
        raise PartFailed(f"what cuDNN said is not JSON: {error}") from None
    file = visit.out / f"{name}.json"
    whole_file.write_text(file, json.dumps(properties, indent=1) + "\n")
    return f"{file.name}: {properties.get('deviceName', 'a GPU without a name')}"


def _cases(report: Path) -> tuple[int, int, list[str]]:
    """Returns the counts of passed and skipped cases and the names of the failed cases of a GoogleTest report."""
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


def run_test(visit: Visit, test: GpuTest) -> tuple[int, int, list[str]]:
    """Runs one test. Returns the counts of passed and skipped cases and the names of failed cases. Any thread."""
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


def run_all(visit: Visit, tests: list[GpuTest], skips: bool = True) -> str:
    """Runs the tests one after another. Errors: as _counts(); CannotRun if `skips` is false and a case was skipped."""
    results = [run_test(visit, test) for test in tests]
    text = _counts(results)
    if not skips and any(result[1] for result in results):
        raise CannotRun(f"{text}: tests/{tests[0].name}.txt says why they were skipped")
    return text


def _counts(results: list[tuple[int, int, list[str]]]) -> str:
    """Returns the counts as text. Errors: PartFailed if a case failed, CannotRun if all cases were skipped."""
    passed, skipped = sum(r[0] for r in results), sum(r[1] for r in results)
    failed = [name for r in results for name in r[2]]
    text = f"{passed} passed, {len(failed)} failed, {skipped} skipped"
    if failed:
        raise PartFailed(f"{text}: {', '.join(failed[:3])}{', ...' if len(failed) > 3 else ''}")
    if passed == 0:
        raise CannotRun(text)
    return text


def gpu_tests(visit: Visit) -> str:
    """Runs all tests of label gpu at once, and beside them the compilations for which torch.compile needs minutes.
    Tests and compilations mostly wait for compilers, and nothing is measured here."""
    tests = visit.place.gpu_tests()
    if not tests:
        raise CannotRun(NO_TESTS)
    peers = []
    if visit.gpu is not None and not isinstance(visit.torch, str):
        peers = [(dtype, model) for dtype in visit.sizes.dtypes[:2] for model in visit.sizes.models]
        peers += [(dtype, visit.sizes.models[0]) for dtype in visit.sizes.dtypes[2:]]
    at_once = max(1, int((visit.gpu.memory_bytes if visit.gpu else 0) // _PEER_ROOM))
    cache = host.compile_cache()
    with ThreadPoolExecutor(len(tests)) as pool, ThreadPoolExecutor(at_once) as compilers:
        try:
            compiling = [compilers.submit(compile_ahead, visit, *peer, cache, _PEER_MEMORY) for peer in peers]
            results = list(pool.map(lambda test: run_test(visit, test), tests))
            compiled = sum(each.result() for each in compiling)
        except BaseException:  # after an interrupt, the threads still wait for their programs
            compilers.shutdown(wait=False, cancel_futures=True)
            commands.end_all()
            raise
    text = _counts(results)
    return f"{text}; torch.compile was through with {compiled} of {len(peers)} networks" if peers else text


def sanitizer(tool: str) -> Callable[[Visit], str]:
    """Returns a part that runs a tool of compute-sanitizer over the tests with "kernel" in their name. If there are
    no such tests, the part runs the tool over all tests of label gpu."""

    def run(visit: Visit) -> str:
        if visit.gpu is None:
            raise CannotRun("no GPU")
        if visit.sanitizer is None:
            raise CannotRun("there is no compute-sanitizer (it comes with the CUDA toolkit)")
        tests = visit.place.gpu_tests()
        chosen = [test for test in tests if "kernel" in test.name] or tests
        if not chosen:
            raise CannotRun(NO_TESTS)
        # "all", because the launcher of a bundle starts the program as a child.
        start = [visit.sanitizer, "--tool", tool, "--target-processes", "all", "--error-exitcode", "9"]
        checked = [GpuTest(f"{tool}-{t.name}", [*start, *t.command], 10 * t.seconds, t.environment) for t in chosen]
        return run_all(visit, checked)

    return run
