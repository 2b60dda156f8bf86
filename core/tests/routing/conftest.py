from fib_tests.worlds import *  # noqa: F403
