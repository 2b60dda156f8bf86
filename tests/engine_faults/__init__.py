"""Faults of every kind around an engine that is traced and substituted.

The engines are those of the FlashInfer plugin's tests: real sequences of calls of the real package,
whose kernels alone are stood in for. What they compute with nothing enabled is what they have to
compute under every fault.
"""
