"""Finds how many units of work a batch holds, or says why the batch does not tell it. Knows a tensor by its shape.
Checks the counts that a user gives."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hvdb.base.errors import HvdbError

_DEPTH = 20  # nested lists, tuples and mappings that are looked into
# Keys of a mapping that tell where sequences begin which share one row (Hugging Face's DataCollatorWithFlattening).
_PACKING = re.compile("cu_?seq|seq_idx|position_ids")


def _shape(value: Any) -> tuple[Any, ...]:
    """Returns the shape of a tensor and () for anything else. Only the first length of a nested tensor is known."""
    if getattr(value, "is_nested", False):
        return (value.size(0), *[None] * (value.dim() - 1))
    shape = getattr(value, "shape", None)
    return shape if isinstance(shape, tuple) else ()


def _parts(value: Any, seen: set[int], depth: int = _DEPTH) -> Iterator[Any]:
    """Yields the tensors, lists, tuples and mappings of a batch, each container once."""
    if _shape(value):
        yield value
    elif isinstance(value, Mapping | list | tuple) and id(value) not in seen and depth:
        seen.add(id(value))
        yield value
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(one, seen, depth - 1)


def _is_packed(part: Any, length: int) -> bool:
    """Returns whether `part` holds sequences one after the other: a PackedSequence, or one row with their places."""
    keys = map(str, part) if isinstance(part, Mapping) and length == 1 else ()
    return hasattr(part, "batch_sizes") or any(map(_PACKING.match, keys))


def _doubt(parts: list[Any], shapes: list[tuple[Any, ...]], sequence_first: bool) -> str:
    """Returns why the first length of the tensors may not be the number of units, "" if nothing speaks against it."""
    lists = [[_shape(one) for one in part] for part in parts if isinstance(part, list | tuple) and not _shape(part)]
    lengths = sorted({shape[0] for shape in shapes})
    if not lengths or not lengths[0]:
        return "it has no tensor with a length"
    if any(_is_packed(part, lengths[0]) for part in parts):
        return "it is packed"
    if len(lengths) > 1:
        return f"the first lengths of its tensors are {', '.join(map(str, lengths[:4]))}"
    if any(one and all(len(shape) == 3 for shape in one) for one in lists):
        return "a list of tensors of three dimensions may be one of images"
    kinds = [str(getattr(part, "dtype", "")) for part in parts if _shape(part)]
    if all(len(shape) == 1 and "int" in kind for shape, kind in zip(shapes, kinds, strict=True)):
        return "it has only whole numbers in a row, which may be the tokens of several sequences"
    if sequence_first and max(map(len, shapes)) <= 3:
        return "a layer of the model has batch_first=False, so that time may come first"
    return ""


def units_of(batch: Any, sequence_first: bool) -> int:
    """Returns the number of units in `batch`: the first length of its tensors, which must agree.

    sequence_first: the model has layers that expect time before the batch.
    Errors: HvdbError if the batch has no such length, or if it may count something else.
    """
    parts = list(_parts(batch, set()))
    shapes = [shape for shape in map(_shape, parts) if shape]
    if why := _doubt(parts, shapes, sequence_first):
        raise HvdbError(f"the batch does not tell how many units a step has ({why}): say units=..., unit=...")
    return int(shapes[0][0])


def whole(number: object, name: str, most: int) -> int:
    """Returns `number`. Errors: HvdbError if `number` is no whole number from 1 to `most`."""
    try:
        value = operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        value = 0
    if not 1 <= value <= most or isinstance(number, bool):
        raise HvdbError(f"{name} {number!r:.40}: must be a whole number from 1 to {most}")
    return value
