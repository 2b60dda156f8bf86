from fib_tests.cli import maker
