"""The command line: ``fib``, also installed as ``flashinfer-bench``."""
