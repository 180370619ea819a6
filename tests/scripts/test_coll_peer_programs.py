"""Tests the programs that measure collectives: machine, versions, results, and how a launch fails."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from limits import HANG

from harness import SCRIPTS, SharedFolderTest, execute

from hvdb.errors import HvdbError
from maintain.collpeers import cells, libraries, machine, samples

ENGINE = Path(os.environ.get("HVD_BENCH", "hvd_bench")).with_name("engine_collectives")


class MachineTest(unittest.TestCase):
    def test_two_threads_of_a_core_are_one_core(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for processor, package, core in ((0, 0, 0), (1, 0, 1), (2, 1, 0), (4, 0, 0), (5, 0, 1), (10, 1, 0)):
                topology = Path(folder) / f"cpu{processor}" / "topology"
                topology.mkdir(parents=True)
                (topology / "physical_package_id").write_text(f"{package}\n")
                (topology / "core_id").write_text(f"{core}\n")
            self.assertEqual(machine.one_per_core({0, 1, 2, 4, 5, 10}, Path(folder)), [0, 1, 2])
            self.assertEqual(machine.one_per_core({4, 5, 10, 1}, Path(folder)), [1, 4, 10])
            self.assertEqual(machine.one_per_core({7, 8}, Path(folder)), [7, 8])  # the system names no cores

    def test_the_page_cache_is_available(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "meminfo"
            file.write_text("MemTotal:  100 kB\nMemFree:  1 kB\nMemAvailable:   90 kB\n")
            self.assertEqual(machine.available_bytes(file), 90 << 10)
            self.assertGreater(machine.available_bytes(Path(folder) / "missing"), 0)


class LibraryTest(unittest.TestCase):
    def test_another_program_is_another_version(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program"
            library = libraries.Library("a title", "1.2", [], {}, program)
            program.write_bytes(b"one")
            first = libraries.version(library)
            program.write_bytes(b"two")
            self.assertRegex(first, "^1.2; program [0-9a-f]{12}$")
            self.assertNotEqual(first, libraries.version(library))
            program.unlink()
            with self.assertRaisesRegex(HvdbError, "No such file"):
                libraries.version(library)

    def test_why_a_launch_failed_is_kept(self) -> None:
        said = "rank 1: the library reports an error"
        launcher = "-----\nmpirun noticed that\n   Exit code:    2\n-----\n"
        for printed, words in (
            (f"a warning\n{said}\nrank 0: another rank failed\n{launcher}", said),
            (f"rank 0: another rank failed\n{launcher}", "rank 0: another rank failed"),
            (f'{launcher}{{"cell": 1}}\n', "Exit code: 2"),
            ("killed\n2026 |CCL_WARN| a value changed\n", "killed"),
            ("x" * 1000, "x" * libraries.LONGEST_WORDS),
            ("", ""),
        ):
            self.assertEqual(libraries.last_words(printed), words)
        program = Path("/bin/sh")
        late = libraries.Library("", "", ["/bin/sh", "-c", "echo ended; exec sleep 60"], {libraries.CORES: []}, program)
        self.assertEqual(
            libraries.launch(late, libraries.CORES, 2, [], [], 0.5), ({}, "took longer than 0 s and was ended")
        )
        library = libraries.Library("", "", ["/bin/sh", "-c", f"echo '{said}'; exit 3"], {libraries.CORES: []}, program)
        self.assertEqual(
            libraries.launch(library, libraries.CORES, 2, [], [], 20.0), ({}, f"ended with exit code 3: {said}")
        )


ALL_OPERATIONS = [
    *(f"{operation}/fp32/4004/out/3" for operation in cells.OPERATIONS[:4]),  # 1001 elements: unequal shares of 2 ranks
    *(f"{operation}/int64/8000/out/2" for operation in cells.OPERATIONS[:4]),
    "all_reduce/fp64/4000/in/2",
    "all_gather/int32/4004/in/2",
    "broadcast/fp32/4004/in/2",
    "barrier/fp32/0/in/5",
]


@unittest.skipUnless(shutil.which("mpirun") and shutil.which("mpicxx"), "needs an MPI with its compiler wrapper")
class ProgramTest(SharedFolderTest):
    """The measuring programs of the system's MPI and of the engine must give exact results and find wrong results."""

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        with mock.patch.object(libraries, "PROGRAMS", cls.folder):
            there, _ = libraries.found(ENGINE)
        cls.libraries = {name: there[name] for name in ("system", *libraries.OURS)}
        libraries.build(there["system"])

    def launch(self, name: str, *words: str, asked: list[str]) -> tuple[dict[str, samples.Result], str | None]:
        options = ["--samples", "2", "--cell-seconds", "5", "--pool-bytes", "100000", "--seed", "3", *words]
        return libraries.launch(self.libraries[name], libraries.OVERSUBSCRIBED, 2, options, asked, 100.0)

    def require_exact(self, name: str) -> None:
        results, failure = self.launch(name, asked=ALL_OPERATIONS)
        self.assertIsNone(failure, name)
        self.assertEqual(set(results), set(ALL_OPERATIONS), name)
        for cell, result in results.items():
            self.assertEqual((result.wrong, len(result.seconds)), (0, 2), f"{name}: {cell}")
        results, failure = self.launch(name, "--corrupt", asked=ALL_OPERATIONS)
        self.assertRegex(failure or "", "^ended with exit code 1", name)
        for cell in ALL_OPERATIONS:
            self.assertEqual(results[cell].wrong, 0 if cell.startswith("barrier") else 1, f"{name}: {cell}")

    def test_every_operation_is_exact_and_one_changed_value_is_found(self) -> None:
        self.require_exact("system")

    @unittest.skipUnless(ENGINE.exists(), f"needs {ENGINE}: scripts/build release --target engine_collectives")
    def test_every_operation_of_ours_is_exact_and_one_changed_value_is_found(self) -> None:
        for name in libraries.OURS:
            with self.subTest(name):
                self.require_exact(name)

    def test_a_cell_that_makes_no_sense_is_refused(self) -> None:
        for cell in ("all_reduce/fp32/3/in/1", "broadcast/fp32/4/out/1", "all_reduce/fp32/4/in/0", "x"):
            results, failure = self.launch("system", asked=[cell])
            self.assertEqual(results, {}, cell)
            self.assertIn(f": {cell}: " if "/" in cell else ": x: not OPERATION", failure or "", cell)

    def test_both_programs_read_every_set(self) -> None:
        """The measuring program must accept every cell that cells.parse() accepts. Its only error may be that options
        are missing."""
        program = str(self.libraries["system"].program)
        every = [cell for texts in cells.SETS.values() for cell in texts]
        largest, above = (f"all_reduce/fp32/{cells.MOST_BYTES + more}/in/1" for more in (0, 4))
        self.assertIsNotNone(cells.parse(largest))
        self.assertIsNone(cells.parse(above))
        for asked, why in (
            ([*every, largest], "needs --shared-page, --samples and at least one cell"),
            ([above], f"{above}: "),
        ):
            done = execute(program, *asked, code=2)
            self.assertIn(f"rank 0: {why}", done.stderr)


class Call(ctypes.Structure):
    """The fields of Call in bench/peers/collectives.h that RulesTest reads."""

    _fields_ = (
        ("operation", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("in_place", ctypes.c_bool),
        ("out", ctypes.c_void_p),
        ("input", ctypes.c_void_p),
    )


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
PERFORM = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Call))


class Rules(ctypes.Structure):
    """The fields of Library in bench/peers/collectives.h."""

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("self", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("perform", PERFORM),
    )


@unittest.skipUnless(shutil.which("g++"), "needs g++")
class RulesTest(unittest.TestCase):
    """Runs the measuring code with a library for one rank that this test defines."""

    POOL = 8 << 20

    def resident_share(self, address: int, length: int) -> float:
        """Returns the share of pages that are in memory. The first use of a page outside memory is a page fault."""
        state = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), state), 0)
        return sum(byte & 1 for byte in state) / len(state)

    def test_all_buffers_are_in_memory_before_the_first_sample(self) -> None:
        shares: list[float] = []

        def perform(_: object, call: ctypes._Pointer) -> int:
            shares.extend(self.resident_share(at, self.POOL) for at in (call.contents.input, call.contents.out))
            return 1  # 1 means "unsupported", which ends the cell

        with tempfile.TemporaryDirectory() as folder:
            rules, shared_page = Path(folder) / "rules.so", Path(folder) / "shared_page"
            sources = [str(libraries.SOURCES / name) for name in libraries.RULES]
            words = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{libraries.ROOT}", *sources, "-o", str(rules)]
            subprocess.run(words, check=True, timeout=HANG)
            measure = ctypes.CDLL(str(rules)).hvd_measure_collectives
            mapped: list[mmap.mmap] = []

            def allocate(_: object, size: int) -> int:
                mapped.append(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
                return ctypes.addressof(ctypes.c_char.from_buffer(mapped[-1]))

            for own in (ALLOCATE(0), ALLOCATE(allocate)):
                shared_page.write_bytes(b"")
                words = ["x", "--shared-page", str(shared_page), "--samples", "1", "--pool-bytes", str(self.POOL)]
                words += ["--cell-seconds", "0", "all_reduce/fp32/1024/out/1"]
                library = Rules(0, 1, None, own, PERFORM(perform))
                given = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
                self.assertEqual(measure(ctypes.byref(library), len(words), given), 0)
        self.assertEqual(shares, [1.0] * 4)


INSTALLED = {
    name: library
    for name, library in libraries.found(ENGINE)[0].items()
    if name not in libraries.OURS and not name.startswith("system")
}
LACKING = {  # cells that a library does not support because the library needs equal shares
    "oneccl": {"reduce_scatter/fp32/4004/out/3"},
    "gloo": {"reduce_scatter/fp32/4004/out/3", "all_gather/fp32/4004/out/3", "all_gather/int32/4004/in/2"},
}


@unittest.skipUnless(INSTALLED, "needs scripts/install_deps --peers")
class InstalledPeersTest(unittest.TestCase):
    def test_every_peer_is_exact_and_one_changed_value_is_found(self) -> None:
        options = ["--samples", "2", "--cell-seconds", "5", "--pool-bytes", "100000", "--seed", "3", "--corrupt"]
        for name, library in INSTALLED.items():
            with self.subTest(name):
                libraries.build(library)
                one_core = len(machine.cores()) < 2 or name in libraries.YIELDING
                kind = libraries.OVERSUBSCRIBED if one_core else libraries.CORES
                results, failure = libraries.launch(library, kind, 2, options, ALL_OPERATIONS, 200.0)
                self.assertRegex(failure or "", "^ended with exit code 1")
                lacking = {cell for cell, result in results.items() if not result.seconds}
                self.assertEqual(lacking, LACKING.get(name.removesuffix("_yield"), set()))
                for cell in set(ALL_OPERATIONS) - lacking:
                    self.assertEqual(results[cell].wrong, 0 if cell.startswith("barrier") else 1, cell)


class InstallationTest(unittest.TestCase):
    def test_a_peer_that_cannot_be_installed_leaves_the_others(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            checkout, programs = Path(folder) / "checkout", Path(folder) / "bin"
            shutil.copytree(SCRIPTS, checkout / "scripts")
            programs.mkdir()
            (programs / "dpkg-query").write_text("#!/bin/sh\necho install ok installed\n", encoding="utf-8")
            (programs / "dpkg-query").chmod(0o755)
            lines = (checkout / "scripts" / "install_deps").read_text(encoding="utf-8")
            table = lines.partition("peer_table='")[2].partition("'")[0].splitlines()
            self.assertEqual(len(table), 5)
            for name, _, _, _, wheels in (line.split("|") for line in table):
                if name != "mpich":
                    peer = checkout / "build" / "peers" / name
                    peer.mkdir(parents=True)
                    (peer / "wheels.txt").write_text(f"{wheels}\n", encoding="utf-8")
            offline = {"PATH": f"{programs}:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
            command = ["/bin/bash", "scripts/install_deps", "--peers"]
            done = execute(*command, cwd=checkout, env={**os.environ, **offline}, code=2)
            self.assertIn("could not be installed: MPICH 5.0;", done.stderr)
            self.assertIn("oneCCL 2021.15 is there: build/peers/oneccl", done.stdout)
            self.assertFalse((checkout / "build" / "peers" / "mpich").exists())
