from fib_tests.browser import *  # noqa: F403
from fib_tests.cli import *  # noqa: F403
from fib_tests.records import *  # noqa: F403
from fib_tests.results import *  # noqa: F403
