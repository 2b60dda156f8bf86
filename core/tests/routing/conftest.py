from fib_tests.routed_use import library
from fib_tests.worlds import *  # noqa: F403
