"""The trusted side of an evaluation: inputs, reference, comparison and verdict.

Nothing in this package runs code from a dataset or imports anything that a candidate sends.
"""
