"""The command line: ``fib``, also installed as ``flashinfer-bench``."""

from __future__ import annotations

import signal
import sys

# While ``fib`` imports its modules, Ctrl-C ends it at once and without a traceback.
if (
    sys.argv[:1]
    and sys.argv[0].endswith(("/fib", "/flashinfer-bench"))
    and signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, signal.SIG_DFL)
