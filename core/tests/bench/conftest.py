from fib_tests.scripted import (
    cache_folder,
    catalog,
    evaluator,
    executor,
    problems,
    session,
    settings,
)
