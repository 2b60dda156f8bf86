"""Provenance of traces, and carrying out an evaluation once more to see whether it still holds."""
