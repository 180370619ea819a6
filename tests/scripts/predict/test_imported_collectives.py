"""Results of nccl-tests and of the OSU micro-benchmarks are read, and damaged or hostile ones end in one line."""

import json
import math
import os
import tempfile
import unittest
from pathlib import Path

from synthetic_store import REPOSITORY  # noqa: F401 (sets the path of hvdb)

from hvdb.base.errors import HvdbError
from hvdb.read.imported_collectives import Imported, ImportedRow, read

DEVICES = "".join(
    f"#  Rank {rank:2d} Group  0 Pid   {1000 + rank} on   worker-{rank // 2} device  {rank % 2} [0x8d] NVIDIA H100\n"
    for rank in range(4)
)
HALF = "    time   algbw   busbw #wrong"
RANKS_2_AND_3 = "".join(DEVICES.splitlines(keepends=True)[2:])
COLUMNS = (
    f"#       size         count      type   redop    root {HALF} {HALF}\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
START = "     float     sum      -1 "
ROWS = (
    f"        1024           256{START}   20.00    0.05    0.08      0    19.00    0.05    0.08    N/A\n"
    "worker-0:1:2 [0] NCCL INFO something between the rows\n"
    f"     1048576        262144{START}   100.0   10.49   15.73      0    99.00   10.59   15.89      0\n"
)
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 7.9\n#\n"
STARTING = "# Collective test starting: /opt/nccl-tests/build/all_reduce_perf_mpi\n"
TABLE = f"{STARTING}#\n# Using devices\n{DEVICES}#\n{COLUMNS}{ROWS}{END}"
OLD = TABLE.replace(STARTING, "").replace("Group  0 ", "")
OSU = (
    "\n# OSU MPI Allreduce Latency Test v7.4\n# Datatype: MPI_FLOAT.\n"
    "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
    "4                       3.50              3.10              3.90        1000\n"
    "1048576               812.25            800.00            820.00         100\n"
)


def document() -> dict:
    def form(time: float) -> dict:
        return {"time": time, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0.0}

    return {
        "version": 1,
        "args": ["all_reduce_perf", "-J"],
        "env": ["SECRET=hidden"],
        "config": {"nthreads": 1, "ngpus": 2, "devices": [{"hostname": "a"}, {"hostname": "b"}]},
        "results": [
            {"size": 0, "type": "float", "redop": "sum", "root": "-1", "out_of_place": form(5), "in_place": form(5)},
            {
                "size": 1024,
                "type": "float",
                "redop": "sum",
                "out_of_place": form(20.0),
                "out_of_place_per_iter": {"times_us": [19.0, 21.0]},
                "in_place": form(19.0),
                "experiment_name": "AllReduce",
            },
        ],
    }


class Files(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "results.txt"

    def read(self, text: str) -> Imported:
        self.file.write_text(text)
        return read(self.file)

    def refused(self, text: str, words: str) -> None:
        with self.assertRaisesRegex(HvdbError, words) as raised:
            self.read(text)
        message = str(raised.exception)
        self.assertTrue(message.isprintable(), repr(message))
        self.assertIn("results.txt", message)

    def test_a_table_of_nccl_tests(self) -> None:
        for text in (TABLE, OLD):
            made = self.read(text)
            self.assertEqual((made.program, made.ranks, made.nodes, len(made.rows)), ("nccl-tests", 4, 2, 4))
            self.assertEqual(made.rows[2], ImportedRow("all_reduce", "float", "sum", False, 1 << 20, (100e-6,)))
            self.assertEqual([row.in_place for row in made.rows], [False, True] * 2)

    def test_a_table_of_2_8_without_root(self) -> None:
        text = OLD.replace("redop    root ", "redop ").replace("      -1 ", " ").replace("#wrong", " error")
        text = text.replace("      0 ", "  1e-07 ")
        self.assertEqual(self.read(text).rows[2].seconds, (100e-6,))

    def test_json_of_nccl_tests(self) -> None:
        made = self.read(json.dumps(document()))
        self.assertEqual((made.ranks, made.nodes), (4, 2))
        self.assertEqual([row.seconds for row in made.rows], [(19e-6, 21e-6), (19e-6,)])
        self.assertNotIn("hidden", repr(made))

    def test_a_table_of_osu(self) -> None:
        made = self.read(OSU)
        self.assertEqual((made.program, made.ranks), ("OSU micro-benchmarks", None))
        self.assertEqual([(row.operation, row.size) for row in made.rows], [("all_reduce", 4), ("all_reduce", 1 << 20)])
        self.assertAlmostEqual(made.rows[1].seconds[0], 812.25e-6)

    def test_damaged_tables(self) -> None:
        for words, text in (
            ("known heading", ""),
            ("known heading", "\x1b[31m" * 10),
            ("no row with a time", TABLE[: TABLE.index("        1024 ")]),
            (
                "line 13: 5 fields",
                TABLE.replace("   100.0   10.49   15.73      0    99.00   10.59   15.89      0", ""),
            ),
            ("line 11: time is not", TABLE.replace("20.00 ", "  nan ")),
            ("line 11: time is not", TABLE.replace("20.00 ", " 0.00 ")),
            ("line 11: time is not", TABLE.replace("20.00 ", "1e300 ")),
            ("wrong elements", TABLE.replace("0.08      0 ", "0.08      7 ")),
            ("the type or the reduction is no word", TABLE.replace("float", "\x1b[2J")),
            ("the type or the reduction is no word", TABLE.replace("   sum ", "   mu* ")),
            ("size is not", TABLE.replace("     1048576 ", "9" * 30 + " ")),
            ("list of ranks has a gap", TABLE.replace("Rank  1 ", "Rank  7 ")),
            ("does not name the columns", TABLE.replace(COLUMNS, "# size count type redop algbw time time\n")),
            ("a bandwidth is not a number", OLD.replace("10.49 ", "  x.y ")),
            ("CPU times", TABLE.replace("    time   algbw", " cputime   algbw")),
            ("does not name its test", OLD.replace("   sum ", "  none ")),
            ("not those of an all-reduce", OLD.replace("15.73", " 7.87")),
            ("line 11: longer than 4096 characters", TABLE.replace("        1024 ", "1024" + " " * 5000)),
            ("line 5: a size without", OSU.replace("3.50              3.10              3.90        1000", "")),
            ("times are in 'ms', not in us", OSU.replace("Avg Latency(us)", "Avg Latency(ms)")),
            ("line 6: cut off", OSU[: OSU.index("812.25") + 3]),
            ("time is not a time from 0.001 us", OSU.replace("3.50", "1e-290")),
            ("line 5: time is not", OSU.replace("3.50", "3_50")),
            ("line 5: time is not", OSU.replace("3.50", "\u0663.50")),
            ("line 5: wrong elements", OSU.replace("Iterations", "Validation").replace("     1000", " Fail")),
            ("results of OSU micro-benchmarks and nccl-tests in one|results of nccl-tests and OSU", f"{TABLE}{OSU}"),
            ("tests on 2 ranks on 1 nodes and 4 ranks on 2 nodes", TABLE + TABLE.replace(RANKS_2_AND_3, "")),
            ("wrong elements", TABLE.replace("0.08      0 ", "0.08     -1 ")),
            ("line 6: cut off", OSU.replace("1048576 ", "  1048576 ")[: OSU.index("812.25") + 3]),
        ):
            with self.subTest(words):
                self.refused(text, words)

    def test_what_no_reader_knows_is_listed_with_its_own_words(self) -> None:
        for text, row in (
            (TABLE.replace("float", "f8e4m3").replace("   sum ", "mulsum "), ("all_reduce", "f8e4m3", "mulsum")),
            (TABLE.replace("all_reduce_perf", "hypercube_perf"), ("hypercube", "float", "sum")),
            (OSU.replace("MPI_FLOAT", "MPI_BYTE"), ("all_reduce", "MPI_BYTE", "sum")),
        ):
            made = self.read(text).rows[0]
            self.assertEqual((made.operation, made.type, made.reduction), row)

    def test_several_tests_in_one_file(self) -> None:
        gathering = TABLE.replace("all_reduce_perf", "all_gather_perf").replace("   sum ", "  none ")
        made = self.read(TABLE + gathering)
        self.assertEqual((made.ranks, made.nodes), (4, 2))
        self.assertEqual([row.operation for row in made.rows], ["all_reduce"] * 4 + ["all_gather"] * 4)
        made = self.read(OSU + OSU.replace("Allreduce", "Allgather"))
        self.assertEqual([row.operation for row in made.rows], ["all_reduce"] * 2 + ["all_gather"] * 2)

    def test_what_a_prediction_must_not_take_for_the_plain_operation_has_a_name_of_its_own(self) -> None:
        for title, operation in (
            ("Allgatherv", "all_gatherv"),
            ("Allgather Persistent", "persistent all_gather"),
            ("Non-blocking Allreduce", "non-blocking all_reduce"),
            ("Neighborhood Allgather", "neighborhood all_gather"),
            ("Reduce_scatter_block", "reduce_scatter_block"),
        ):
            self.assertEqual(self.read(OSU.replace("Allreduce", title)).rows[0].operation, operation)

    def test_the_type_of_osu(self) -> None:
        made = self.read(OSU.replace("MPI_FLOAT", "MPI_DOUBLE"))
        self.assertEqual({row.type for row in made.rows}, {"double"})
        moved = self.read(OSU.replace("MPI_FLOAT", "MPI_CHAR").replace("Allreduce", "Allgather"))
        self.assertEqual({row.type for row in moved.rows}, {"float"}, "what is only moved has no type that matters")

    def test_every_truncated_table_is_refused_or_read_in_part(self) -> None:
        for end in range(0, len(TABLE), 7):
            try:
                made = self.read(TABLE[:end])
            except HvdbError:
                continue
            self.assertTrue(set(made.rows) <= set(self.read(TABLE).rows) or end > TABLE.index("1048576"), end)

    def test_damaged_json(self) -> None:
        def with_row(**changes: object) -> str:
            changed = document()
            changed["results"][1].update(changes)
            return json.dumps(changed)

        for words, text in (
            ("no whole JSON", json.dumps(document())[:-1]),
            ("no whole JSON", "{" * 100_000),
            ("config: 1 is not a table", '{"config": 1, "results": []}'),
            ("neither JSON nor a table", "{}"),
            (
                r"config.devices\[1\]: 1 is not a table",
                json.dumps({**document(), "config": {"nthreads": 1, "ngpus": 1, "devices": [1]}}),
            ),
            (
                "config.ngpus: -1 is not",
                json.dumps({**document(), "config": {"nthreads": 1, "ngpus": -1, "devices": []}}),
            ),
            ("size is not a whole number", with_row(size=-8)),
            ("size is not a whole number", with_row(size="x")),
            ("no time", with_row(in_place={"cpu_time": 3.0})),
            ("time is not", with_row(in_place={"time": math.nan})),
            (r"results\[2\]: time is not a time", with_row(in_place={"time": "nan"})),
            ("has no list of 1 to", with_row(out_of_place_per_iter=[1])),
            ("number of wrong elements is not", with_row(in_place={"time": 3.0, "nwrong": False})),
            ("time is not", with_row(out_of_place_per_iter={"times_us": [1.0, -1.0]})),
            ("wrong elements", with_row(in_place={"time": 3.0, "nwrong": 2.0})),
            ("not a number", with_row(in_place={"time": 3.0, "nwrong": 10**400})),
            ("the test has no name", with_row(experiment_name="\x1b[")),
            (r"results\[1\]: 7 is not a table", json.dumps({**document(), "results": [7]})),
        ):
            with self.subTest(words):
                self.refused(text, words)

    def test_what_is_no_file(self) -> None:
        with self.assertRaisesRegex(HvdbError, "not a file"):
            read(self.file.parent)
        os.mkfifo(self.file)  # reading it would wait for ever
        with self.assertRaisesRegex(HvdbError, "not a file"):
            read(self.file)
        with self.assertRaisesRegex(HvdbError, "cannot be read"):
            read(self.file.with_name("missing"))


if __name__ == "__main__":
    unittest.main()
