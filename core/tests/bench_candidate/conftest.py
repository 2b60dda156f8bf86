from fib_tests.candidates import (
    bench,
    definition_of,
    descriptors,
    eventually,
    exists,
    group_exists,
    pipe,
    plugin_in_reach,
    server_executor,
    sockets,
    solution_of,
)
