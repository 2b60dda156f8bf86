"""Faults of every kind against `flashinfer_bench.apply`, judged by an oracle of its own."""
