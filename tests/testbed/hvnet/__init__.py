"""Measures hvd_bench on an artificial network of known bandwidth and latency on one machine."""
