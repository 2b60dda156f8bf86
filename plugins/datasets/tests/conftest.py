from fib_tests.cli import *  # noqa: F403
from fib_tests.records import *  # noqa: F403
