"""Stopping rules: when a benchmark has seen enough samples."""
