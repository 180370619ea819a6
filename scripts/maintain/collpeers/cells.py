"""The cells to measure, as text OPERATION/TYPE/BYTES/in|out/CALLS, and lists of cells. Pure.

BYTES is the larger of input size and output size of one call. CALLS is the number of calls in one sample; each call has
its own buffer. bench/peers/cell.cpp reads the same text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hvdb.errors import HvdbError

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier")
TYPE_BYTES = {"fp32": 4, "fp64": 8, "int32": 4, "int64": 8}
_EITHER_PLACE = ("all_reduce", "all_gather")
_IN_PLACE = ("broadcast", "barrier")
_CELL = re.compile(rf"({'|'.join(OPERATIONS)})/({'|'.join(TYPE_BYTES)})/(\d{{1,10}})/(in|out)/([1-9]\d{{0,4}})")
LONGEST_CELL = 60
MOST_BYTES = 1 << 33  # bench/peers/cell.cpp, kMostBytes

# Bytes of the parameters in fp32. The parameter counts come from models/zoo and equal torchvision's published figures.
GRADIENTS = {"inception3": 4 * 23_834_568, "resnet101": 4 * 44_549_160, "vgg16": 4 * 138_357_544}
SIZES = (8, 1 << 10, 32 << 10, 1 << 20, 16 << 20)
_WHOLE = ("all_reduce", "broadcast")  # operations in which each rank has all elements, so one element is enough
BROAD_SIZES = (64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20)
UNEVEN_BYTES = 1_000_012  # 250,003 elements of 4 bytes: not divisible by 2 or 4 ranks


def calls_for(size: int) -> int:
    """Returns the calls per sample. A sample must take much longer than its barrier and the reading of the clock."""
    return 100 if size <= 4 << 10 else 20 if size <= 64 << 10 else 4 if size <= 1 << 20 else 1


def cell(operation: str, data_type: str, size: int, place: str) -> str:
    """Returns the text of a cell."""
    return f"{operation}/{data_type}/{size}/{place}/{calls_for(size)}"


BROADEST = cell("all_reduce", "fp32", 512 << 20, "in")  # part of set broad if there is enough memory


def _each_operation(sizes: Sequence[int]) -> list[str]:
    """Returns cells for all operations except barrier, in fp32 and in their usual place."""
    found = []
    for operation in OPERATIONS[:-1]:
        place = "in" if operation in ("all_reduce", *_IN_PLACE) else "out"
        found += [cell(operation, "fp32", size, place) for size in sizes]
    return found


def _sizes() -> list[str]:
    found = [cell("barrier", "fp32", 0, "in"), *_each_operation((*SIZES, UNEVEN_BYTES))]
    found += [cell("all_reduce", data_type, 1 << 20, "in") for data_type in ("fp64", "int32", "int64")]
    found += [cell("all_reduce", "fp32", 1 << 20, "out"), cell("all_gather", "fp32", 1 << 20, "in")]
    return found


def _broad() -> list[str]:
    small = [cell(operation, "fp32", 4, "in") for operation in _WHOLE]
    return [*small, *_each_operation(BROAD_SIZES), BROADEST]


SETS = {
    "quick": [cell("all_reduce", "fp32", 1 << 10, "in"), cell("all_reduce", "fp32", 4 << 20, "in")],
    "sizes": _sizes(),
    "gradients": [cell("all_reduce", "fp32", size, "in") for size in GRADIENTS.values()],
    "many": ["all_reduce/fp32/1024/in/1000"],
    "broad": _broad(),
}
SETS["core"] = [SETS["sizes"][0], *_each_operation(SIZES), *SETS["gradients"], *SETS["many"]]
SETS["all"] = [text for name in ("sizes", "gradients", "many") for text in SETS[name]]


def parse(text: str) -> tuple[str, str, int, str, int] | None:
    """Parses a cell's text to (operation, type, bytes, place, calls). Returns None if it is not a cell."""
    found = _CELL.fullmatch(text)
    if not found:
        return None
    operation, data_type, size, place, calls = found[1], found[2], int(found[3]), found[4], int(found[5])
    if size > MOST_BYTES:
        return None
    whole = size % TYPE_BYTES[data_type] == 0 and (size == 0) == (operation == "barrier")
    placed = operation in _EITHER_PLACE or (place == "in") == (operation in _IN_PLACE)
    return (operation, data_type, size, place, calls) if whole and placed else None


def chosen(words: Sequence[str], most_ranks: int = 2) -> list[str]:
    """Returns the cells that `words` name, as sets or as cells, each once. Errors: HvdbError for an unknown word.

    Of set broad, returns only cells in which each of `most_ranks` ranks has at least one element.
    """
    found: dict[str, None] = {}
    for word in words:
        if word not in SETS and parse(word) is None:
            raise HvdbError(
                f"'{word}' is neither a set of cells ({', '.join(SETS)}) nor a cell OPERATION/TYPE/BYTES/in|out/CALLS, "
                "for example all_reduce/fp32/1048576/in/4"
            )
        texts = SETS.get(word, [word])
        found.update(dict.fromkeys(text for text in texts if word != "broad" or has_shares(text, most_ranks)))
    return list(found)


def has_shares(text: str, ranks: int) -> bool:
    """Returns True if each rank has at least one element of a call."""
    parsed = parse(text)
    return parsed is not None and (parsed[0] in (*_WHOLE, "barrier") or parsed[2] >= ranks * TYPE_BYTES[parsed[1]])


def pool_bytes(texts: Sequence[str], rotated: int) -> int:
    """Returns the bytes of a rank's two pools, for input and for output buffers. measure_all() in
    bench/peers/collectives.cpp computes the same sizes."""
    parsed = [one for one in map(parse, texts) if one]
    size_in = max([rotated, *(size * calls for _, _, size, _, calls in parsed)])
    out = [max(rotated, size * calls) for _, _, size, place, calls in parsed if place == "out"]
    return size_in + max(out, default=0)


def title(text: str) -> str:
    """Returns a cell's text for tables, such as "all_reduce fp32 1,024 B x 1000".

    If the gradients of a network have the cell's size, the text contains the network's name as well.
    """
    parsed = parse(text)
    if parsed is None:
        return text
    operation, data_type, size, place, calls = parsed
    if operation == "barrier":
        return f"barrier x {calls}"
    network = next((name for name, gradients in GRADIENTS.items() if gradients == size), "")
    words = f"{operation} {data_type} {size:,} B{' (' + network + ')' if network else ''}"
    return words + (" out of place" if place == "out" and operation in _EITHER_PLACE else "") + f" x {calls}"
