"""The subcommands of ``fib report``, a module each."""
