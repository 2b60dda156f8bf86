"""The builder suite on every builder of ``broken_builders``; run by ``test_builder_suite``."""

import inspect

import broken_builders
from suites import suites_of

from fib_testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    make_solution,
    sample_definition,
)
from flashinfer_bench.plugins import BuilderSpec

broken_builders.IN_TESTS.append(True)

DEFINITION = sample_definition()
MAIN = "import helper\n\n\ndef run(x, y, scale):\n    return helper.add(x, y) * scale\n"
HELPER = "def add(a, b):\n    return a + b\n"
EITHER = (
    "def run(x, y, scale, out=None):\n"
    "    if out is None:\n        return (x + y) * scale\n"
    "    out.copy_((x + y) * scale)\n"
)
WRITES = "def run(x, y, scale, out):\n    out.copy_((x + y) * scale)\n"


def toy(sources, **fields):
    sources = {"main.py": sources} if isinstance(sources, str) else sources
    return make_solution(DEFINITION, sources, "main.py::run", language="toy", **fields)


GOOD = toy({"main.py": MAIN, "helper.py": HELPER})
TWIN = toy({"main.py": MAIN, "helper.py": HELPER.replace("+", "-")})
DECLARED = toy(EITHER, destination_passing_style=True)
DESTINATION = toy(WRITES, destination_passing_style=True)
UNMET = FailingSolution(solution=toy("def run(x):\n    return x\n", name="one"), expect="nvcc")
MET = FailingSolution(solution=UNMET.solution, expect="destination-passing 4")


def record(builder="Good", **fields):
    given = {
        "name": "toy",
        "handles": [("toy", None)],
        "factory": f"broken_builders:{builder}",
        "summary": "A toy",
        "probe": "broken_probes:good",
    }
    return BuilderSpec(**given | fields)


def case(builder="Good", *, fields=None, **given):
    made = record(builder, **(fields or {}))
    common = {"definition": DEFINITION, "solution": GOOD, "plugin": "broken_probes"}
    return BuilderCase(**{"record": made, **common} | given)


def compiled(builder, **given):
    return case(builder, fields={"compiles": True}, libraries="*.py", **given)


CASES = {
    "Good": case(twin=TWIN, other_style=DESTINATION, failing=(MET,)),
    "DestinationPassing": case(solution=DESTINATION),
    "Unavailable": case(fields={"probe": "broken_probes:unavailable"}),
    "Compiled": compiled("Compiled", twin=TWIN),
    "RefusesOptions": compiled("RefusesOptions"),
    "LeavesNoLibrary": case("Compiled", fields={"compiles": True}),
    "NoSummary": case(fields={"summary": ""}),
    "NoFactory": case("NoSuchBuilder"),
    "BrokenPlugin": case(plugin="broken_import"),
    "ProbeSlow": case(fields={"probe": "broken_probes:slow"}),
    "ProbeSetsVariable": case(fields={"probe": "broken_probes:sets_variable"}),
    "HandlesOthers": case(fields={"handles": [("cuda", None)]}),
    "Declared": case("OtherConvention", solution=DECLARED),
    "ReturnsDestination": case("ReturnsDestination", solution=DESTINATION),
    "OneConvention": case("OneConvention", other_style=DESTINATION),
    "Unmet": case(failing=(UNMET,)),
    "KeepsByName": case("KeepsByName", twin=TWIN),
}
COMPILING = [
    name
    for name, found in inspect.getmembers(broken_builders, inspect.isclass)
    if issubclass(found, broken_builders.Compiled)
]
PLAIN = [
    name
    for name, found in inspect.getmembers(broken_builders, inspect.isclass)
    if found.__module__ == broken_builders.__name__ and "build" in dir(found)
]
CASES |= {
    name: compiled(name) if name in COMPILING else case(name)
    for name in PLAIN
    if name not in (*CASES, "ChangesErrors", "OtherConvention")
}


globals().update(suites_of({name: (BuilderConformance, case) for name, case in CASES.items()}))


class TestNoCase(BuilderConformance):
    """Somebody forgot the fixture."""
