"""Names in the results of collective operations."""

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier")
TYPES = ("float", "half", "bfloat16", "double", "int8", "uint8", "int16", "int32", "int64")
REDUCTIONS = ("sum", "prod", "max", "min", "avg", "none")
