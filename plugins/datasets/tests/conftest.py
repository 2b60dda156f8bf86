from fib_tests.cli import *  # noqa: F403
from fib_tests.findings import defined
from fib_tests.records import *  # noqa: F403
