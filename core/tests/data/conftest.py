from fib_tests.records import *  # noqa: F403
