"""One rank that measures the collectives of PyTorch's Gloo by the rules of bench/peers.

    mpirun -np RANKS python gloo_rank.py RULES FILE ...

RULES is a shared library with these rules, FILE ... their arguments. Open MPI's mpirun only starts and binds the ranks.
Runs in the Python of build/peers/torch, which has no hvdb.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST = range(5)  # bench/peers/collectives.h, Collective


class Call(ctypes.Structure):
    """The struct Call of bench/peers/collectives.h."""

    _fields_ = (("operation", ctypes.c_int32), ("out", ctypes.c_void_p), ("input", ctypes.c_void_p))
    _fields_ += (("count", ctypes.c_size_t), ("share", ctypes.c_size_t))


PERFORM = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.POINTER(Call))


class Library(ctypes.Structure):
    """The struct Library of bench/peers/collectives.h."""

    _fields_ = (("rank", ctypes.c_int32), ("size", ctypes.c_int32), ("self", ctypes.c_void_p))
    _fields_ += (("allocate", ctypes.c_void_p), ("perform", PERFORM))


def tensor(address: int, count: int) -> torch.Tensor:
    """Returns the `count` elements at `address` as a tensor."""
    return torch.frombuffer((ctypes.c_float * count).from_address(address), dtype=torch.float32)


def perform(_: object, pointer: ctypes._Pointer) -> bool:
    """Performs one call. Catches all exceptions, because no exception may leave a callback from C."""
    call = pointer.contents
    try:
        if call.operation == ALL_REDUCE:
            dist.all_reduce(tensor(call.out, call.count))
        elif call.operation == REDUCE_SCATTER:
            dist.reduce_scatter_tensor(tensor(call.out, call.share), tensor(call.input, call.count))
        elif call.operation == ALL_GATHER:
            dist.all_gather_into_tensor(tensor(call.out, call.count), tensor(call.input, call.share))
        elif call.operation == ALL_TO_ALL:
            dist.all_to_all_single(tensor(call.out, call.count), tensor(call.input, call.count))
        elif call.operation == BROADCAST:
            dist.broadcast(tensor(call.out, call.count), 0)
        else:
            dist.barrier()
    except Exception:
        traceback.print_exc()
        return False
    return True


def main() -> int:
    """Measures. Returns the exit code of measure_collectives()."""
    rules, file = sys.argv[1:3]
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{file}.store", timedelta(seconds=60), world_size=size, rank=rank)
    arguments = (ctypes.c_char_p * (len(sys.argv) - 1))(*(word.encode() for word in sys.argv[1:]))
    library = Library(rank, size, None, None, PERFORM(perform))
    return ctypes.CDLL(rules).measure_collectives(ctypes.byref(library), len(arguments), arguments)


if __name__ == "__main__":
    sys.exit(main())
