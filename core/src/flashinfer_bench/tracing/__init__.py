"""Collecting the workloads of a running program."""
