"""``python -m flashinfer_bench`` is the same program as ``fib``."""

from __future__ import annotations

from flashinfer_bench.cli.main import main

if __name__ == "__main__":
    main()
