"""Measures the collectives of PyTorch's Gloo by the rules of bench/peers. RULES is a shared library with these rules.

    python gloo_collectives.py RULES RANKS any|PROCESSORS --shared-page FILE ...

The program forks RANKS processes. Each process is bound to one of the PROCESSORS, for example 0,2,4. With `any`, no
process is bound. The program runs in the Python of build/peers/torch, which has no hvdb. Its exit code is that of the
first rank that fails, else 0.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

DONE, UNSUPPORTED, FAILED = range(3)  # bench/peers/collectives.h, Answer
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, BARRIER = range(6)
TYPES = (torch.float32, torch.float64, torch.int32, torch.int64)


class Call(ctypes.Structure):
    """The struct Call of bench/peers/collectives.h."""

    _fields_ = (
        ("operation", ctypes.c_int32),
        ("type", ctypes.c_int32),
        ("in_place", ctypes.c_bool),
        ("out", ctypes.c_void_p),
        ("input", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("counts", ctypes.POINTER(ctypes.c_size_t)),
        ("starts", ctypes.POINTER(ctypes.c_size_t)),
    )


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
PERFORM = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(Call))


class Library(ctypes.Structure):
    """The struct Library of bench/peers/collectives.h."""

    _fields_ = (
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("self", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("perform", PERFORM),
    )


class Gloo:
    """One rank, which owns its pools of memory and performs the calls. Used by one thread."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._pools: list[torch.Tensor] = []

    def allocate(self, _: object, size: int) -> int:
        self._pools.append(torch.zeros(size, dtype=torch.uint8))
        return self._pools[-1].data_ptr()

    def _view(self, address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        for pool in self._pools:
            begin = address - pool.data_ptr()
            if 0 <= begin < pool.numel():
                return pool[begin : begin + count * dtype.itemsize].view(dtype)
        raise ValueError("memory that no pool holds")

    def _run(self, call: Call) -> None:
        if call.operation == BARRIER:
            dist.barrier()
            return
        dtype, mine = TYPES[call.type], call.counts[self._rank]
        outs = {REDUCE_SCATTER: mine, ALL_TO_ALL: self._size * mine}
        out = self._view(call.out, outs.get(call.operation, call.count), dtype)
        if call.operation == BROADCAST:
            dist.broadcast(out, 0)
            return
        given = self._view(call.input, mine if call.operation == ALL_GATHER else call.count, dtype)
        if call.operation == ALL_REDUCE:
            if not call.in_place:
                out.copy_(given)  # Gloo has no call with separate input and output
            dist.all_reduce(out)
        elif call.operation == REDUCE_SCATTER:
            dist.reduce_scatter_tensor(out, given)
        elif call.operation == ALL_GATHER:
            dist.all_gather_into_tensor(out, given)
        elif call.count % self._size == 0:
            dist.all_to_all_single(out, given)
        else:
            dist.all_to_all_single(out, given, [mine] * self._size, call.counts[: self._size])

    def perform(self, _: object, call: ctypes._Pointer) -> int:
        """Performs one call. Catches all exceptions, because no exception may leave a callback from C."""
        even = call.contents.count % self._size == 0
        if call.contents.operation in (REDUCE_SCATTER, ALL_GATHER) and not even:
            return UNSUPPORTED  # Gloo requires equal shares here
        try:
            self._run(call.contents)
        except Exception:
            traceback.print_exc()
            return FAILED
        return DONE


def run_rank(rank: int, size: int, words: list[str]) -> int:
    """Measures on one rank. Returns the exit code of measure()."""
    rules = ctypes.CDLL(words[0])
    arguments = ["gloo_collectives", *words[1:]]
    store = arguments[arguments.index("--shared-page") + 1] + ".store"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{store}", timedelta(seconds=60), world_size=size, rank=rank)
    gloo = Gloo(rank, size)
    allocate, perform = ALLOCATE(gloo.allocate), PERFORM(gloo.perform)
    library = Library(rank, size, None, allocate, perform)
    words_of_c = (ctypes.c_char_p * len(arguments))(*(word.encode() for word in arguments))
    return rules.hvd_measure_collectives(ctypes.byref(library), len(arguments), words_of_c)


def fork(work: Callable[[], int]) -> int:
    """Forks a child that ends with the result of `work`. Returns its process id."""
    child = os.fork()
    if child:
        return child
    code = FAILED
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    """Runs the ranks. Returns the exit code."""
    rules, size, placing, *words = sys.argv[1:]
    processors = [] if placing == "any" else [int(number) for number in placing.split(",")]

    def rank_work(rank: int) -> int:
        if processors:
            os.sched_setaffinity(0, {processors[rank % len(processors)]})
        return run_rank(rank, int(size), [rules, *words])

    children = {fork(lambda rank=rank: rank_work(rank)) for rank in range(int(size))}
    worst = 0
    while children:
        child, status = os.wait()
        children.discard(child)
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and worst == 0:
            worst = abs(code)
        if code not in (0, 1):  # the other ranks would wait for the rank that has ended
            for other in children:
                os.kill(other, signal.SIGKILL)
    return worst


if __name__ == "__main__":
    raise SystemExit(main())
