"""scripts/maintain/gpu_check: the parts of a visit to a GPU host, each with its own time limit."""
