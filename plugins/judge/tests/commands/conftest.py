from fib_tests.cli import clean_environment, fib, fib_process, fib_terminal
