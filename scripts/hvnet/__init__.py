"""A network of known bandwidth and latency on one machine, and what hvd_bench makes of it."""
