from fib_tests.cli import maker
from fib_tests.findings import defined
