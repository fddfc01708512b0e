"""Readers of the data sets that the benchmarks use; none is shipped."""
