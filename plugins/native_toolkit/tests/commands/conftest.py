from fib_tests.cli import *  # noqa: F403
