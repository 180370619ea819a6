"""Tests the parts of hvdb.torch_efficiency that need no PyTorch: loaders, the talk of the ranks, and the rounds."""

from __future__ import annotations

import os
import threading
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from harness import FolderTest

import hvdb.torch_efficiency as torch_efficiency
from hvdb.base.errors import HvdbError
from hvdb.ddp import samples, session, steps
from hvdb.ddp.ranks import Ranks
from hvdb.ddp.session import Session
from hvdb.ddp.steps import FULL, NONE, SERIES, SOLO, Feed


class Store:
    """A key-value store of a process group, within a process. gone: its server has ended."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.gone = False

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def check(self, keys: list[str]) -> bool:
        if self.gone:
            raise RuntimeError("Connection reset by peer\nException raised from recvBytes")
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


class OldStore:
    """The store of PyTorch 2.1, as it was seen to behave."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if expected and self.values.get(key, expected) == expected:
            return expected.encode()
        return self.values[key].encode()


class FakeSteps:
    """Steps of a rank that take no time. fails: the phase whose second visit raises. dies: it says nothing instead."""

    def __init__(self, rank: int, fails: str = "") -> None:
        self.feed, self.device, self.estimated = (
            SimpleNamespace(queue=0, restarts=0),
            SimpleNamespace(type="cpu"),
            False,
        )
        self.rank, self.fails, self.visits = rank, fails, dict.fromkeys((SOLO, NONE, FULL), 0)

    def visit(self, phase: str, discard: int, count: int) -> dict[str, list[float]]:
        self.visits[phase] += 1
        if self.fails == phase and self.visits[phase] > 2:
            raise RuntimeError("Connection closed by peer\nmore")
        step = {SOLO: 0.05, NONE: 0.06, FULL: 0.1}[phase]
        return dict(
            zip(
                SERIES,
                ([step] * count, [0.01] * count, [0.03] * count, [0.02] * count, [0.01] * count, [1.0] * count),
                strict=True,
            )
        )


class SessionTest(unittest.TestCase):
    SIZE = 3

    def lead(
        self, others: dict[int, str], mine: str = "", seconds: float = 1000, store: Store | OldStore | None = None
    ) -> tuple[Session, list]:
        """Runs a session whose ranks are threads. others: rank -> the phase in which it fails. Returns also what each
        rank raised."""
        store, raised = store or Store(), [None] * self.SIZE
        state = SimpleNamespace(weights=lambda: None)

        def ranks(rank: int) -> Ranks:
            return Ranks(store, rank, self.SIZE, 0.3, "hvdb/0")

        def follow(rank: int) -> None:
            try:
                session.follow(ranks(rank), FakeSteps(rank, others.get(rank, "")), state)
            except Exception as error:
                raised[rank] = error

        threads = [
            threading.Thread(target=follow, args=(rank,)) for rank in range(1, self.SIZE) if others.get(rank) != "dead"
        ]
        for thread in threads:
            thread.start()
        hellos = [{"host": "n1", "pid": os.getpid(), "local_rank": rank} for rank in range(self.SIZE)]
        leader = Session(ranks(0), FakeSteps(0, mine), state, seconds, hellos)
        try:
            leader.run()
            leader.ranks.order(end="")
        except Exception as error:
            raised[0] = error
            leader.ranks.order(end=str(error))
        for thread in threads:
            thread.join(60)
            self.assertFalse(thread.is_alive())
        return leader, raised

    def test_rounds_of_all_phases(self) -> None:
        leader, raised = self.lead({})
        self.assertEqual(raised, [None] * self.SIZE)
        self.assertEqual(len(leader.rounds), session.ROUNDS)
        self.assertEqual([len(leader.rounds[0][phase]) for phase in (SOLO, NONE, FULL)], [1, 3, 3])
        self.assertEqual(len(leader.rounds[0][FULL][2]["step_seconds"]), 2, "0.25 s of steps of 0.1 s")

    def test_a_store_that_cannot_check(self) -> None:
        leader, raised = self.lead({}, store=OldStore())
        self.assertEqual((raised, len(leader.rounds)), ([None] * self.SIZE, session.ROUNDS))
        ranks = Ranks(OldStore(), 0, 2, 0.3, "x")
        self.assertIsNone(ranks.hear("hello", 1, 0.01))
        self.assertEqual(ranks.store.values, {})

    def test_a_rank_that_fails_is_named_and_ends_the_others(self) -> None:
        for phase in (NONE, FULL):
            _, raised = self.lead({2: phase})
            self.assertIn(f"rank 2 in phase {phase}: Connection closed by peer", str(raised[0]))
            self.assertNotIn("more", str(raised[0]), "one line")
            self.assertIsInstance(raised[2], RuntimeError, "the user's own error passes through")
            self.assertEqual(str(raised[1]), str(raised[0]))

    def test_a_rank_that_says_nothing_is_lost_whatever_failed_on_rank_0(self) -> None:
        _, raised = self.lead({1: "dead"})
        self.assertIn("rank 1 did not answer within 0.3 s in phase full", str(raised[0]))
        _, raised = self.lead({1: "dead"}, mine=FULL)
        self.assertIn("rank 1", str(raised[0]))

    def test_too_little_time_and_the_weights_come_back_before_each_visit(self) -> None:
        _, raised = self.lead({}, seconds=0.01)
        self.assertRegex(
            str(raised[0]), r"a step takes 0.1 s, so that two rounds do not fit into seconds=0.01; give seconds=\d+"
        )

    def test_what_had_ended_when_torchrun_told(self) -> None:
        hellos = [
            {"host": "n1", "pid": os.getpid()},
            {"host": "n1", "pid": 2**22 + 1},
            {"host": "n2", "pid": 2**22 + 1},
        ]
        leader = Session(Ranks(Store(), 0, 3, 1.0, "x"), FakeSteps(0), None, 1.0, hellos)
        self.assertEqual(leader.ended(), "SIGTERM; rank 1 had ended")

    def test_a_store_whose_server_is_gone(self) -> None:
        store = Store()
        store.gone = True
        with self.assertRaisesRegex(HvdbError, "the store of the process group is gone.*: Connection reset by peer$"):
            Ranks(store, 1, 2, 1.0, "x").hear("order/0", 0, 1.0)
        with self.assertRaisesRegex(HvdbError, "rank 0 did not go on within 0 s"):
            Ranks(Store(), 1, 2, 1.0, "x").next_order(0.1)


class FeedTest(unittest.TestCase):
    def test_a_loader_is_begun_again_and_an_iterator_is_not(self) -> None:
        feed = Feed([1, 2])
        self.assertEqual([feed.next()[0] for _ in range(5)], [1, 2, 1, 2, 1])
        self.assertEqual(feed.restarts, 2)
        feed = Feed(iter([1, 2]))
        with self.assertRaisesRegex(HvdbError, "the loader ended after 2 batches; give one that can be begun again"):
            [feed.next() for _ in range(3)]
        with self.assertRaisesRegex(HvdbError, "ended after 0 batches"):
            Feed([]).next()
        with self.assertRaisesRegex(HvdbError, "batches must be a loader that can be iterated, not int"):
            Feed(3)

    def test_the_wait_is_of_the_batch(self) -> None:
        clock = iter([10.0, 10.25])
        with mock.patch.object(steps.time, "perf_counter", lambda: next(clock)):
            self.assertEqual(Feed([1]).next(), (1, 0.25))

    def test_a_queue_of_workers(self) -> None:
        loader = type("Loader", (list,), {"num_workers": 2, "prefetch_factor": 4})([1])
        self.assertEqual((Feed(loader).queue, Feed([1]).queue), (8, 0))


class SamplesTest(unittest.TestCase):
    def test_the_text(self) -> None:
        series = dict(zip(SERIES, ([0.5], [0.1], [0.2], [0.15], [0.05], [2.0]), strict=True))
        phases = {SOLO: [series], NONE: [series] * 2, FULL: [series] * 2}
        facts = {"torch.version": (True, "2.15.0"), "torch.note_1": (False, "a note")}
        header = {"model": "net", "unit": "tokens", "status": "complete", "status_reason": ""}
        lines = samples.samples_text(header, facts, [(0, "n1"), (0, "n2")], [phases], estimated=False).splitlines()
        self.assertEqual(lines[:4], ["hvd-samples 1", "model net", "unit tokens", "status complete"])
        self.assertEqual(
            lines[4:8], ["fact torch.version 1 2.15.0", "fact torch.note_1 0 a note", "rank 0 0 n1", "rank 1 0 n2"]
        )
        full = lines[lines.index("phase full") :]
        self.assertEqual(
            full[2:7],
            [
                "step_seconds 0.5",
                "input_seconds 0.1",
                "compute_seconds 0.2",
                "exposed_seconds 0.15",
                "update_seconds 0.05",
            ],
        )
        solo = lines[lines.index("phase solo") : lines.index("phase none")]
        self.assertEqual(solo[4], "compute_seconds 0.35", "backward up to its end")
        self.assertEqual(lines[-1], "end 1")
        estimated = samples.samples_text(header, facts, [], [phases], estimated=True)
        self.assertNotIn("exposed_seconds", estimated)


class RefusalTest(FolderTest):
    def torch(self, *, initialized: bool = True, size: int = 2) -> Any:
        distributed = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: initialized, get_world_size=lambda: size
        )
        network = SimpleNamespace(parameters=lambda: [SimpleNamespace(requires_grad=True, device="cpu")])
        parallel = type("DistributedDataParallel", (), {"static_graph": False, "module": network})
        optimizer = type("Optimizer", (), {})
        return SimpleNamespace(
            distributed=distributed,
            nn=SimpleNamespace(parallel=SimpleNamespace(DistributedDataParallel=parallel)),
            optim=SimpleNamespace(Optimizer=optimizer),
        )

    def test_what_cannot_be_measured(self) -> None:
        torch = self.torch()
        model, optimizer = torch.nn.parallel.DistributedDataParallel(), torch.optim.Optimizer()
        static = torch.nn.parallel.DistributedDataParallel()
        static.static_graph = True
        spread = torch.nn.parallel.DistributedDataParallel()
        spread.module = SimpleNamespace(
            parameters=lambda: [SimpleNamespace(requires_grad=True, device=f"cuda:{i}") for i in (0, 1)]
        )
        frozen = torch.nn.parallel.DistributedDataParallel()
        frozen.module = SimpleNamespace(parameters=lambda: [SimpleNamespace(requires_grad=False)])
        sharded = type("FSDP", (), {"__module__": "torch.distributed.fsdp.fully_sharded"})()
        torch_efficiency._require_training(torch, model, optimizer, print)
        for module, values, pattern in (
            (
                self.torch(initialized=False),
                (model, optimizer, print),
                "no process group: start the script with torchrun",
            ),
            (self.torch(size=1), (model, optimizer, print), "the process group has one rank"),
            (
                torch,
                (sharded, optimizer, print),
                "the model is sharded.*record one rank's plain model.*--schedule sharded",
            ),
            (torch, (3, optimizer, print), "model must be a DistributedDataParallel, not int"),
            (torch, (static, optimizer, print), "static_graph: PyTorch then expects every step to reduce"),
            (torch, (spread, optimizer, print), "gradients on several devices .cuda:0, cuda:1."),
            (torch, (frozen, optimizer, print), "no parameter that requires a gradient"),
            (torch, (model, 3, print), "optimizer must be a torch.optim.Optimizer that was made, not int"),
            (torch, (model, optimizer, 3), "loss must be a function"),
        ):
            with self.subTest(pattern), self.assertRaisesRegex(HvdbError, pattern) as raised:
                torch_efficiency._require_training(module, *values)
            self.assertEqual(len(str(raised.exception).splitlines()), 1)

    def test_unlike_batches_and_no_units(self) -> None:
        with self.assertRaisesRegex(HvdbError, "ranks 1, 3 works? on 4 units a step, and rank 0 on 8"):
            torch_efficiency._equal_units([{"units": n} for n in (8, 4, 8, 4)])

    def test_words_and_numbers(self) -> None:
        torch_efficiency._require_words("tokens", None, "bf16", 1, 120, 60.0)
        for values, pattern in (
            (("Two words", 1, "fp32", 1), "unit 'Two words': must be one word of small letters"),
            (("x", 1, "fp8", 1), "compute_type 'fp8': must be one of"),
            (("x", 0, "fp32", 1), "units 0: must be a whole number from 1"),
            (("x", 8.5, "fp32", 1), "units 8.5: must be a whole number from 1"),
            (("x", None, None, 2.5), "accumulate 2.5: must be a whole number from 1"),
            (("x", 1, "fp32", 1, True), "must be numbers above 0, not True"),
        ):
            with self.assertRaisesRegex(HvdbError, pattern):
                torch_efficiency._require_words(*values)

    def test_a_rank_that_cannot_begin_tells_the_others(self) -> None:
        store = Store()
        with self.assertRaises(HvdbError), torch_efficiency._telling(Ranks(store, 1, 2, 1.0, "x")):
            raise HvdbError("no units\nmore")
        with self.assertRaisesRegex(HvdbError, "^rank 1 at the start: no units$"):
            Ranks(store, 0, 2, 1.0, "x").all("hello", [1], "at the start")
        with self.assertRaises(HvdbError), torch_efficiency._telling(Ranks(store, 0, 2, 1.0, "x")):
            raise HvdbError("no program")
        with self.assertRaisesRegex(HvdbError, "^no program$"):
            Ranks(store, 1, 2, 1.0, "x").next_order(1.0)

    def test_a_program_that_is_too_old(self) -> None:
        program = self.folder / "hvd_bench"
        program.write_text("#!/bin/sh\nexit 2\n")
        program.chmod(0o755)
        with (
            mock.patch.dict(os.environ, {"HVD_BENCH": str(program)}),
            self.assertRaisesRegex(HvdbError, "no command"),
        ):
            torch_efficiency._program(self.folder / "x.db")

    def test_no_program_and_no_folder_are_told_before_the_steps(self) -> None:
        for given in (self.folder / "none", self.folder):
            with (
                mock.patch.dict(os.environ, {"HVD_BENCH": str(given)}),
                self.assertRaisesRegex(HvdbError, "^HVD_BENCH: no program at .*: run scripts/build"),
            ):
                torch_efficiency._program(self.folder / "x.db")
        with self.assertRaisesRegex(HvdbError, "there is no folder .*none$"):
            torch_efficiency._program(self.folder / "none" / "x.db")

    def test_the_samples_stay_where_they_cannot_be_stored(self) -> None:
        program = self.folder / "hvd_bench"
        program.write_text("#!/bin/sh\necho 'hvd_bench: error: the disk is full' >&2\nexit 2\n")
        program.chmod(0o755)
        with (
            mock.patch("tempfile.tempdir", str(self.folder)),
            self.assertRaisesRegex(HvdbError, "the disk is full; .* keeps"),
        ):
            torch_efficiency._analysed("text", self.folder / "x.db", program)
        self.assertEqual([file.read_text() for file in self.folder.glob("hvd-samples-*")], ["text"])


if __name__ == "__main__":
    unittest.main()
