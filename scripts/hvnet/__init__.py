"""Measures hvd_bench on a network of known bandwidth and latency, which is made on one machine."""
