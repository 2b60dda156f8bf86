from fib_tests.cli import maker
from fib_tests.results import make_result
