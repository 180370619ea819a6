"""Outputs as other programs print them: excerpts from their own sources, each named where it is used, and bad ones.

A row that cannot be used blocks only those who choose it.
"""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from collections.abc import Sequence
from unittest import mock

from limits import HANG

from harness import FolderTest
from synthetic_store import REPOSITORY  # noqa: F401 (sets the path of hvdb)

from hvdb.base.errors import HvdbError, NotComparable
from hvdb.base.record import Malformed
from hvdb.read import coll_results, imported_collectives, metrics, others
from hvdb.read.metrics import Metric
from hvdb.read.others import Results

HALF = "    time   algbw   busbw  #wrong"
PLACES = "#                                                              out-of-place                       in-place\n"
HEADING = f"{PLACES}#       size         count      type   redop    root {HALF} {HALF}\n"
STARTING = "# Collective test starting: all_reduce_perf\n"
# NVIDIA/dgx-spark-playbooks pull request 103, nccl-tests 2.20.0
NCCL = f"""# nccl-tests version 2.20.0 (b4d5bee) nccl-headers=23102 nccl-library=23102
{STARTING}# nThread 1 nGpus 1 minBytes 8192 maxBytes 8589934592 step: 2(factor) warmup iters: 10 iters: 100 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid 1666603 on spark-d708 device  0 [000f:01:00] NVIDIA GB10
#  Rank  1 Group  0 Pid 1669515 on spark-dbf4 device  0 [000f:01:00] NVIDIA GB10
#
{HEADING.rstrip()}
        8192          2048     float     sum      -1    35.15    0.23    0.23       0    30.33    0.27    0.27       0
       16384          4096     float     sum      -1    31.67    0.52    0.52       0    30.75    0.53    0.53       0
# Out of bounds values : 0 OK
"""
# google/benchmark issue 1401
GBENCH = {
    "context": {"num_cpus": 10, "library_build_type": "release", "caches": [{"type": "Data", "level": 1}]},
    "benchmarks": [
        {
            "name": "custom_sum",
            "family_index": 0,
            "per_family_instance_index": 0,
            "run_name": "custom_sum",
            "run_type": "iteration",
            "repetitions": 5,
            "repetition_index": 0,
            "real_time": 274585.35204274935,
            "cpu_time": 274585.3855470327,
            "time_unit": "ns",
        }
    ],
}


def microseconds(text: object, rows: Sequence[str] = (), tool: str | None = None) -> dict[str, list[float]]:
    """Returns the chosen rows. text: an output, or a document of JSON."""
    content = text if isinstance(text, str) else json.dumps(text)
    results = others.chosen(others.parse(content.encode(), tool), rows, "side a")
    return {name: [round(1e6 * cost, 3) for cost in costs] for name, costs in results.costs.items()}


def row(size: int, rest: str, kind: str = "float", redop: str = "sum") -> str:
    return f"{size:12d}  {size // 4:12d}  {kind:>8}  {redop:>6}      -1{rest}\n"


BODY = "    20.00    0.05    0.05       0"


class CaseTest(unittest.TestCase):
    def refused(self, words: str, text: object, rows: Sequence[str] = (), tool: str | None = None) -> None:
        with self.assertRaisesRegex((HvdbError, Malformed), words) as raised:
            microseconds(text, rows, tool)
        self.assertTrue(str(raised.exception).isprintable(), repr(raised.exception))


class NcclTest(CaseTest):
    def test_a_table_of_2_20(self) -> None:
        self.assertEqual(microseconds(NCCL), {"all_reduce float 8192": [35.15], "all_reduce float 16384": [31.67]})
        self.assertEqual(others.parse(NCCL.encode()).facts, {"ranks": "2", "nodes": "2"})
        self.assertEqual(microseconds(NCCL, ["* 8192 in place"]), {"all_reduce float 8192 in place": [30.33]})
        self.assertEqual(len(microseconds(NCCL, ["*16384", "*in place"])), 3)

    def test_all_types_and_reductions_in_one_table(self) -> None:
        # microsoft/mscclpp pull request 646 (f8e5m2); names of nccl-tests 2.19.6 and rccl-tests, src/common.cu
        fp8 = "    15.14    0.07    0.12      0    15.19    0.07    0.12      0"
        words = [(kind, "sum") for kind in ("f8e5m2", "f8e4m3", "uint32", "uint64", "bfloat16", "fp8_e4m3")]
        words += [("float", redop) for redop in ("prod", "max", "min", "avg", "mulsum")]
        found = microseconds(STARTING + HEADING + "".join(row(1024, fp8, *pair) for pair in words))
        self.assertEqual(len(found), len(words))
        self.assertEqual(found["all_reduce float mulsum 1024"], [15.14])
        self.assertEqual(found["all_reduce f8e5m2 1024"], [15.14])

    def test_one_place_alone(self) -> None:
        heading = f"#    size  count  type  redop  root {HALF}\n"
        # rccl-tests, src/common.cu with -O 0: the table has no column out of place
        alone = f"{STARTING}#                                              in-place\n{heading}{row(8, BODY)}"
        self.assertEqual(microseconds(alone), {"all_reduce float 8 in place": [20.0]})
        self.assertEqual(microseconds(STARTING + heading + row(8, BODY)), {"all_reduce float 8": [20.0]})
        # nccl-tests 2.19.6, src/util.cu: writeBenchMarkLineNullBody() prints 32 spaces
        blank = STARTING + HEADING + row(8, " " * 32 + BODY)
        self.assertEqual(microseconds(blank), {"all_reduce float 8 in place": [20.0]})

    def test_a_log_line_inside_a_row(self) -> None:
        # NVIDIA/nccl issue 1453, run by mpiexec -l of MPICH
        log = "[0] h100clust-worker-1:497888:497888 [0] NCCL INFO 8192 Bytes -> Algo 0 proto 0 time 26.549810\n"
        cut = f"[0]         8192          2048     float     sum      -1{log}{log}[0]     75.38    0.05    0.10      0"
        text = f"[0] {STARTING}[0] {HEADING.splitlines()[1]}\n{cut}{log}{log}[0]     74.11    0.06    0.10      0\n"
        found = microseconds(text, ["*8192*", "*8192 in place"])
        self.assertEqual(found, {"all_reduce float 8192": [75.38], "all_reduce float 8192 in place": [74.11]})
        lost = text.replace("[0]     74.11    0.06    0.10      0\n", "") + row(16384, BODY + BODY)
        self.refused("line 3: 9 fields, and the heading names 13", lost, ["*8192"])
        self.assertEqual(microseconds(lost, ["*16384"]), {"all_reduce float 16384": [20.0]})

    def test_labels_of_launchers(self) -> None:
        for label in (
            "[1,0]<stdout>:",  # aws-samples, MPIJob of nccl-tests (Open MPI 4, --tag-output)
            "Sun Feb 28 11:33:01 2021[1,0]<stdout>:",  # Open MPI 4, orte/mca/iof/base/iof_base_output.c
            "[prterun-n1-42@1,0]<stdout>: ",
            "0: ",  # srun --label
            "00: ",
            "[0] ",
            "2025-09-14T11:29:57.123456789Z ",  # docker logs -t, GitHub Actions
            "2025-09-14T11:29:57Z [1,0]<stdout>:",
            "\x1b[0m",
        ):
            with self.subTest(label):
                text = "".join(f"{label}{line}\n" for line in f"host:1:2 [0] NCCL INFO x\n{NCCL}".splitlines())
                self.assertEqual(microseconds(text), microseconds(NCCL))
                labelled = "".join(f"{label}{line}\n" for line in json.dumps(GBENCH, indent=1).splitlines())
                self.assertEqual(microseconds(f"warming up\n{labelled}done\n"), {"custom_sum": [274.585]})

    def test_old_tables_name_neither_the_test_nor_the_reduction(self) -> None:
        # NVIDIA/nccl issue 644, all_gather of nccl-tests 2.5
        half = "time algbw busbw error"
        text = f"#  size  count  type {half} {half}\n 65536 2048 float 52.01 1.26 1.10 0e+00 50.09 1.31 1.14 0e+00\n"
        self.assertEqual(microseconds(text), {"collective float 65536": [52.01]})

    def test_rows_of_nothing_and_repeated_rows(self) -> None:
        # NVIDIA/nccl-tests issue 128: 0 bytes for less than a share; -N repeats all rows
        zero = "     5.70    0.00    0.00      0     5.54    0.00    0.00      0"
        again = row(8, BODY.replace("20.00", "22.00") + BODY)
        text = STARTING + HEADING + row(0, zero) * 2 + row(8, BODY + BODY) + again
        self.assertEqual(microseconds(text), {"all_reduce float 8": [20.0, 22.0]})

    def test_several_tests_in_one_output(self) -> None:
        text = NCCL + NCCL.replace("all_reduce_perf", "reduce_scatter_perf")
        self.assertEqual(len(microseconds(text)), 4)
        self.refused("tests on 1 ranks on 1 nodes and 2 ranks on 2 nodes", NCCL + NCCL.replace("#  Rank  1", "#"))

    def test_a_faulty_row_blocks_only_those_who_choose_it(self) -> None:
        for faulty, why in (
            (row(1024, BODY.replace("  0", "  7") + BODY), "line 4: wrong elements"),
            (row(1024, BODY.replace("20.00", " 0.00") + BODY), "line 4: time is not a time from 0.001 us"),
            (row(1024, BODY.replace("20.00", "  nan") + BODY), "line 4: time is not a time"),
            (row(1024, BODY), "line 4: 9 fields, and the heading names 13"),
            (row(1024, ""), "line 4: 5 fields"),
        ):
            text = STARTING + HEADING + faulty + row(8, BODY + BODY)
            with self.subTest(why):
                self.assertEqual(microseconds(text, ["*float 8"]), {"all_reduce float 8": [20.0]})
                both = ["*1024", "*1024 in place"]
                self.refused(f"side a: row 'all_reduce float 1024.*': {why}", text, both)
        unreadable = STARTING + HEADING + "9" * 30 + row(8, BODY + BODY)[12:] + row(8, BODY + BODY)
        self.refused("row 'line 4': size is not", unreadable)
        self.assertEqual(len(microseconds(unreadable, ["all_reduce float 8"])), 1)
        text = STARTING + HEADING + row(8, BODY + BODY) + "12 warnings generated\n" + row(16, BODY + BODY)[:-1]
        self.assertEqual(len(microseconds(text, ["*float 8"])), 1)
        self.refused("all_reduce float 16': line 6: cut off", text)

    def test_json_of_rccl_tests(self) -> None:
        # written after the format of -Z json, as tests of rccl-tests' users hold it: a list of such records
        record = {"numCycle": 0, "name": "AllReduce", "nodes": 1, "ranks": 2, "ranksPerNode": 2, "gpusPerRank": 1}
        record |= {"size": 8, "type": "float", "redop": "sum", "inPlace": 0, "time": 11.0, "wrong": "0"}
        bad = {**record, "size": 16, "wrong": "3"}
        records = [record, {**record, "inPlace": 1, "time": 12.0}, bad]
        for text in (
            json.dumps(records),
            "\n".join(map(json.dumps, records)),
            f"RCCL\n[\n{json.dumps(record)},\n{{}}]",
        ):
            self.assertEqual(microseconds(text, ["*float 8"]), {"all_reduce float 8": [11.0]})
        self.assertEqual(others.parse(json.dumps(records).encode()).facts, {"ranks": "2", "nodes": "1"})
        self.refused("float 16': .*record 3: wrong elements", records)

    def test_json_of_nccl_tests(self) -> None:
        # nccl-tests 2.19.6, src/util.cu: JSON 3; a number that is none is the text "nan"
        def result(size: int, time: object, kind: str = "f8e4m3") -> dict:
            half = {"time": time, "alg_bw": 1.0, "bus_bw": 1.5, "nwrong": 0.0}
            names = {"size": size, "type": kind, "redop": "mulsum", "root": "    -1", "experiment_name": "AllReduce"}
            return {**names, "out_of_place": half, "in_place": None}

        config = {"nthreads": 1, "ngpus": 1, "devices": [{"hostname": "a"}, {"hostname": "b"}]}
        document = {"version": 3, "config": config, "results": [result(8, 20.0), result(16, "nan"), result(32, 0.0)]}
        text = f"NCCL version 2.28\n{json.dumps(document, indent=1)}\nbye {{\n"
        self.assertEqual(microseconds(text, ["* 8"]), {"all_reduce f8e4m3 mulsum 8": [20.0]})
        self.refused(r"mulsum 16': results\[2\]: time is not", text)


class OsuTest(CaseTest):
    def test_titles(self) -> None:
        personalized = "Personalized Exchange "
        for title, name in (
            (f"All-to-All {personalized}Latency Test v5.6.2", "all_to_all"),  # open-mpi/ompi issue 11087
            (f"All-to-Allv {personalized}Latency Test v7.5", "all_to_allv"),  # pmodels/mpich issue 7601
            (f"All-to-Allw {personalized}Latency Test v7.0-lrbison3", "all_to_allw"),  # ofiwg/libfabric pull 8680
            # OSU 7.4, c/mpi: BENCHMARK of each test
            ("Non-blocking All-to-All Latency Test v7.4", "non-blocking all_to_all"),
            ("Non-Blocking Broadcast Latency Test v7.4", "non-blocking broadcast"),
            ("Broadcast Persistent Latency Test v7.4", "persistent broadcast"),
            ("Reduce_scatter_block Latency Test v7.4", "reduce_scatter_block"),
            ("Latency Test v7.4", "latency"),
            ("Multi-threaded Latency Test v7.4", "multi_threaded"),
        ):
            with self.subTest(title):
                text = f"loading modules\n\n# OSU MPI {title}\n# Size       Avg Latency(us)\n2                 74.23\n"
                self.assertEqual(microseconds(text, tool="osu"), {f"{name} float 2": [74.23]})

    def test_wide_tables(self) -> None:
        # pmodels/mpich issue 7601
        text = (
            "# OSU MPI All-to-Allv Personalized Exchange Latency Test v7.5\n# Datatype: MPI_CHAR.\n"
            "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations  P50 Tail Lat(us)\n"
            "4096                  467.38            460.43            474.05        1000            407.18\n"
        )
        self.assertEqual(microseconds(text), {"all_to_allv float 4096": [467.38]})
        # open-mpi/ompi pull request 7735: the overall time is read
        text = (
            "# OSU MPI Non-blocking Allgather Latency Test v5.3.2\n"
            "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n\n"
            "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n"
            "1                     216.50            140.95            135.61             44.29\n"
        )
        self.assertEqual(microseconds(text), {"non-blocking all_gather float 1": [216.5]})

    def test_a_failed_validation_blocks_its_row(self) -> None:
        # open-mpi/ompi issue 12717
        text = (
            "# OSU MPI Allreduce Latency Test v7.4\n# Datatype: MPI_CHAR.\n"
            "# Size       Avg Latency(us)        Validation\n"
            "8                       1.51              Pass\n16                      1.51              Fail\n"
            "DATA VALIDATION ERROR: osu_allreduce exited with status 1 on message size 16.\n"
        )
        self.assertEqual(microseconds(text, ["* 8"]), {"all_reduce int8 8": [1.51]})
        self.refused("side a: row 'all_reduce int8 16': line 5: wrong elements", text)

    def test_barrier_and_several_types(self) -> None:
        # OSU 7.4, c/util/osu_util_mpi.c: without a size, and -T mpi_int,mpi_float
        text = "# OSU MPI Barrier Latency Test v7.4\n# Avg Latency(us)\n             1.23\n"
        self.assertEqual(microseconds(text), {"barrier": [1.23]})
        blocks = [
            f"# Datatype: MPI_{kind}.\n# Size       Avg Latency(us)\n4    2.0\n" for kind in ("INT", "FLOAT", "X")
        ]
        found = microseconds("# OSU MPI Allreduce Latency Test v7.4\n" + "".join(blocks))
        self.assertEqual([*found], ["all_reduce int32 4", "all_reduce float 4", "all_reduce MPI_X 4"])

    def test_bandwidth_is_no_time(self) -> None:
        # EESSI/software-layer pull request 716
        text = "# OSU MPI-CUDA Bandwidth Test v7.2\n# Size      Bandwidth (MB/s)\n# Datatype: MPI_CHAR.\n1      1.01\n"
        self.refused("'bandwidth float 1': line 4: the table has no column of times .*--metric", text)
        self.assertEqual(len(microseconds(text + "# OSU MPI Latency Test\n1 2.0\n", ["latency*"])), 1)


class BenchmarksTest(CaseTest):
    def entry(self, **changes: object) -> dict:
        return {**GBENCH["benchmarks"][0], **changes}

    def document(self, *entries: dict) -> dict:
        return {**GBENCH, "benchmarks": list(entries)}

    def test_equal_names_stay_apart(self) -> None:
        twice = self.document(self.entry(), self.entry(family_index=1, real_time=2e3), self.entry(repetition_index=1))
        found = microseconds(twice)
        self.assertEqual(found, {"custom_sum": [274.585] * 2, "custom_sum (2)": [2.0]})
        plain = {key: value for key, value in self.entry().items() if not key.endswith("_index")}
        self.assertEqual([*microseconds(self.document(plain, plain))], ["custom_sum", "custom_sum (2)"])

    def test_aggregates_alone(self) -> None:
        parts = [("mean", 3e3), ("median", 2e3), ("stddev", 1.0), ("cv", 0.1)]
        entries = [
            self.entry(name=f"custom_sum_{name}", run_type="aggregate", aggregate_name=name, real_time=time)
            for name, time in parts
        ]
        self.assertEqual(microseconds(self.document(*entries)), {"custom_sum": [2.0]})

    def test_names(self) -> None:
        names = ["x" * 400, "x" * 401, "BM<int[2]>", "BM<int2>"]
        text = self.document(*(self.entry(name=name, run_name=name) for name in names))
        found = [*microseconds(text)]
        self.assertEqual((len(set(found)), max(map(len, found))), (4, 300))
        self.assertEqual([*microseconds(text, ["BM<int[2]>"])], ["BM<int[2]>"])
        self.assertEqual([*microseconds(text, ["BM*[2]?"])], ["BM<int[2]>"], "[ is no wildcard")
        self.refused(
            r"--row 'BM<in>': there is no such row; there are 'BM<int2>', 'BM<int\[2\]>', 'xx", text, ["BM<in>"]
        )

    def test_an_error_blocks_only_its_row(self) -> None:
        failed = self.entry(name="BM_e", run_name="BM_e", error_occurred=True, error_message="\x1b[2J")
        text = self.document(self.entry(), failed)
        self.assertEqual(len(microseconds(text, ["custom_sum"])), 1)
        self.refused("side a: row 'BM_e': it ended with an error", text)
        cut = json.dumps(text, indent=1)[:-9]
        self.refused("no whole JSON document begins in line 1", cut, tool="gbench")

    def test_nvbench(self) -> None:
        # NVIDIA/nvbench, python/scripts/test_ref.json, JSON 1.0.0
        def state(name: str, tag: str, value: object, **more: object) -> dict:
            data = [{"name": "value", "type": "float64", "value": value}]
            summary = {"tag": tag, "name": "GPU Time", "hint": "duration", "data": data}
            return {"name": name, "device": 0, "axis_values": None, "summaries": [summary], "is_skipped": False, **more}

        mean = "nv/cold/time/gpu/mean"
        states = [state("Device=0 Duration=0.1", mean, "0.0010034715849794225")]
        states += [state("Device=0 Duration=0", mean, "nan"), state("Device=0 Duration=2", "nv/cold/walltime", "1")]
        states += [state("Device=1", mean, "1", is_skipped=True, skip_reason="no")]
        document = {"meta": {"version": {}}, "devices": [{"id": 0, "name": "Quadro GV100"}]}
        document["benchmarks"] = [{"name": "single_float64_axis", "states": states}, {"name": "none", "states": None}]
        self.assertEqual(others.parse(json.dumps(document).encode(), "nvbench").facts, {"devices": "Quadro GV100"})
        good = "single_float64_axis Device=0 Duration=0.1"
        self.assertEqual(microseconds(document, [good]), {good: [1003.472]})
        self.refused("Duration=0': nv/cold/time/gpu/mean is not from 1e-15 s", document, ["*Duration=0"])
        self.refused("Duration=2': it has no mean GPU time", document, ["*Duration=2"])


class OthersTest(CaseTest):
    def test_programs_that_are_not_read_are_named(self) -> None:
        # open-mpi/ompi issue 9838, linux-rdma/perftest issue 65
        imb = "# Reduce\n       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n 4 1000 0.16 1.74 1\n"
        perftest = (
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 1024 1000 0.0 1.0 1\n"
        )
        self.refused("a table of Intel MPI Benchmarks, which is not read; .*--metric", imb)
        self.refused("a table of perftest, which is not read", perftest)
        self.refused("it is one of nccl-tests", NCCL, tool="osu")
        self.refused("it is one of Google Benchmark", f"x\n{json.dumps(GBENCH)}", tool="coll")
        self.refused("neither JSON nor a table", "hello [1] {", tool="osu")

    def test_sides_are_matched(self) -> None:
        a, b = (others.parse(text.encode()) for text in (NCCL, NCCL.replace("       16384 ", "       32768 ")))
        both, missing = others.matched(a, b, [])
        self.assertEqual(both, ["all_reduce float 8192"])
        lacks = ["16384: side B has no such row", "32768: side A has no such row"]
        self.assertEqual(missing, [f"all_reduce float {line}" for line in lacks])

    def test_units_of_the_sides_must_be_equal(self) -> None:
        a, b = (Results(others.COMMAND, {}, {"latency": [1.0]}, {"latency": unit}) for unit in ("us", "ms"))
        with self.assertRaisesRegex(NotComparable, "row latency: A is in us, B in ms"):
            others.matched(a, b, [])


class CollTest(FolderTest):
    @unittest.skipUnless(os.environ.get("HVD_BENCH"), "HVD_BENCH names no program")
    def test_its_table_and_its_json_have_the_same_rows(self) -> None:
        file = self.folder / "coll.json"
        words = "coll --ranks 2 --collective all_reduce,all_gather,barrier -d float,int8 -o sum,avg -b 1K -e 4K -n 10"
        command = [os.environ["HVD_BENCH"], *words.split(), "--max-time", "0.01", "--no-db", "-J", str(file)]
        done = subprocess.run(command, capture_output=True, timeout=HANG)
        self.assertEqual(done.returncode, 0, done.stderr)
        table, document = (others.parse(content, "coll") for content in (done.stdout, file.read_bytes()))
        self.assertEqual(table.facts, {"ranks": "2", "nodes": "1"})
        self.assertEqual(document.facts, table.facts)
        self.assertEqual([*document.costs], [*table.costs])
        self.assertEqual((document.faulty, table.faulty), ({}, {}))
        imported = imported_collectives.read(file)
        self.assertEqual((imported.program, imported.ranks, imported.nodes), ("hvd_bench coll", 2, 1))
        names = [*others.chosen(table, [], "a").costs]
        self.assertEqual(names, [name for name in table.costs if not name.endswith(" in place")])
        self.assertIn("all_reduce int8 avg 1024", names)
        self.assertIn("barrier", names)
        for name, (cost,) in table.costs.items():
            self.assertAlmostEqual(1e6 * cost, 1e6 * document.costs[name][0], delta=0.006 + 0.001 * 1e6 * cost)

    def test_figures_leave_out_what_hvd_bench_does_not_have(self) -> None:
        file = self.folder / "table.txt"
        file.write_text(NCCL.replace("16384          4096     float", "16384          4096    f8e4m3"))
        found = coll_results.read([file])
        self.assertEqual([point.size for series in found.series for point in series.points], [8192, 8192])
        self.assertIn(
            "all_reduce f8e4m3 sum out of place, 2 ranks, 16384 bytes: hvd_bench has no such", found.left_out[0]
        )

    def test_the_sides_of_compare_and_ragged_shares_are_rows_of_their_own(self) -> None:
        # hvd_bench coll --compare algorithm=ring,shm on two ranks
        heading = f"{HEADING.splitlines()[1]}  |     +-   bound      skew       last\n"
        values = "    10.47    0.10    0.10       0        -       -       -       -  |  65.1!    2    0.05    0 (50%)"
        tests = ("all_reduce, algorithm=ring, over ring over mpi", "all_reduce, ragged, algorithm=shm, over shm")
        text = "# 2 ranks on 1 node(s), mpi, Open MPI v4.1.4\n#\n"
        text += "".join(f"# {test}\n#  out-of-place\n{heading}{row(1024, values)}" for test in tests)
        names = ["all_reduce algorithm=ring float 1024", "all_reduce ragged algorithm=shm float 1024"]
        self.assertEqual([*microseconds(text, tool="coll")], names)


class MetricsTest(unittest.TestCase):
    def one(self, text: str | bytes, option: str, higher: bool = False) -> tuple[object, str]:
        """Returns the costs, or why there are none, and the unit."""
        metric = metrics.read_option(option)
        content = text if isinstance(text, bytes) else text.encode()
        results = metrics.parse(content, [Metric(metric.name, metric.pattern, higher)])
        self.assertEqual(results.program, others.COMMAND)
        name = metric.name
        self.assertEqual(name in results.costs, name not in results.faulty)
        return results.costs.get(name) or results.faulty[name], results.units.get(name, "")

    def test_every_match_is_a_sample(self) -> None:
        text = "warm\nLatency: 4 us\nLatency: 2us\n"
        self.assertEqual(self.one(text, "l=Latency: ([0-9.]+)"), ([4.0, 2.0], "us"))
        self.assertEqual(self.one(text, "l=^Latency: ([0-9.]+)us$"), ([2.0], "us"))
        self.assertEqual(self.one("rate 4 images/s.", "r=rate (.*?) ", higher=True), ([0.25], "images/s"))
        self.assertEqual(self.one("rate 4 rows", "r=rate (.*?) "), ([4.0], ""))
        self.assertEqual(self.one(b"\xff t=1e-3 \xb5s\n", "t=t=(\\S+)"), ([1e-3], ""))

    def test_json_paths(self) -> None:
        text = 'log {\n{"a": {"b c": [{"t": 1}, {"t": 2.5}]}, "s": "3"}\nmore\n{"a": {"b c": [{"t": 4}]}}\n'
        self.assertEqual(self.one(text, "t=$.a['b c'][*].t"), ([1.0, 2.5, 4.0], ""))
        self.assertEqual(self.one(text, "t=$.a['b c'][1].t"), ([2.5], ""))
        for path, why in (("$.s", "holds a str, not a number"), ("$.a", "a dict"), ("$.x", "is not there, in 2 JSON")):
            self.assertIn(why, self.one(text, f"t={path}")[0])
        self.assertIn("no JSON object begins a line; matched nothing", self.one("t: 1", "t=$.t")[0])

    def test_faulty_metrics(self) -> None:
        for text, option, why in (
            ("a\nb\x1b[2J\n", "l=x(.)", r"matched nothing in 2 lines; the output begins: 'a\nb\x1b[2J'"),
            ("", "l=x(.)", "matched nothing in 0 lines; the output is empty"),
            ("z" * 999, "l=x(.)", f"the output begins: '{'z' * 100}'"),
            ("t: fast", "l=t: (.*)", "'fast' is not a number"),
            ("t: nan", "l=t: (.*)", "'nan' is not a number"),
            ("t: 0", "l=t: (.*)", "0 is not a number from 1e-30"),
            ("t: -1", "l=t: (.*)", "-1 is not a number from"),
            ("t: 1e999", "l=t: (.*)", "inf is not a number from"),
            ("t: 12.5", "l=t: ([0-9]+)", "the match '12' ends within a number: '12.5'"),
            ("t: 950 us\nt: 1.1 ms", "l=t: ([0-9.]+)", "its unit changes within one launch: us, then ms"),
            ("t: 950 us\nt: 1.1", "l=t: ([0-9.]+)", "its unit changes within one launch: us, then no unit"),
            ("1 " * (metrics.MAX_MATCHES + 1), "l=(1)", "matched more than 100000 times"),
            ("x", "l=x(y)?", "'' is not a number"),
        ):
            with self.subTest(option, why=why):
                self.assertIn(why, self.one(text, option)[0])

    def test_a_regular_expression_that_takes_for_ever_is_ended(self) -> None:
        with mock.patch.object(metrics, "MAX_SECONDS", 0.1):
            for option in ("l=^((?:a+)+)$", "l=(?:a|aa)+(x)"):
                self.assertEqual(self.one("a" * 64 + "!", option)[0], "the regular expression took more than 0.1 s")

    def test_options(self) -> None:
        self.assertEqual(metrics.read_option("a.b-1_=x=([0-9]+)"), Metric("a.b-1_", "x=([0-9]+)"))
        self.assertEqual(metrics.read_option("a=$(x)").pattern, "$(x)")
        for option, why in (
            ("latency", "write NAME=PATTERN"),
            ("l=", "write NAME=PATTERN"),
            ("=(x)", "a name has 1 to 60"),
            ("a b=(x)", "a name has 1 to 60"),
            ("x" * 61 + "=(x)", "a name has 1 to 60"),
            ("l=x", "has 0 groups"),
            ("l=(x)(y)", "has 2 groups"),
            ("l=(x", "not a regular expression"),
            ("\x1b[2J=(x", r"--metric '\x1b[2J=(x': a name"),
            *(
                (f"l={path}", "a path has the form")
                for path in ("$.", "$..a", "$.a[", "$.a[-1]", "$.a[?(@.b)]", "$.a b")
            ),
        ):
            with self.subTest(option), self.assertRaises(HvdbError) as raised:
                metrics.read_option(option)
            self.assertIn(why, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
