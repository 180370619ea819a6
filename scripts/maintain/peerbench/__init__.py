"""Measures hvd_bench beside other libraries. Developers use these modules; they are not installed."""
