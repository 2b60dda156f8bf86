"""The builder suite on every builder of ``broken_builders``; run by ``test_builder_suite``."""

from __future__ import annotations

import broken_builders
import pytest

from flashinfer_bench.plugins import BuilderSpec
from flashinfer_bench.testing import (
    BuilderCase,
    BuilderConformance,
    FailingSolution,
    make_solution,
    sample_definition,
)

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


# name of the class -> what is checked
CASES = {
    "Good": case(twin=TWIN, other_style=DESTINATION, failing=(MET,)),
    "FactoryOnly": case(record="broken_builders:Good", twin=TWIN),
    "DestinationPassing": case(solution=DESTINATION),
    "Unavailable": case(fields={"probe": "broken_probes:unavailable"}),
    "Compiled": compiled("Compiled", twin=TWIN),
    "RefusesOptions": compiled("RefusesOptions"),
    "LeavesNoLibrary": case("Compiled", fields={"compiles": True}),
    "NoSummary": case(fields={"summary": ""}),
    "NoFactory": case("NoSuchBuilder"),
    "FactoryRaises": case(fields={"factory": "broken_import:Builder"}),
    "HeavyPlugin": case(plugin="broken_heavy"),
    "NoisyPlugin": case(plugin="broken_noisy"),
    "BrokenPlugin": case(plugin="broken_import"),
    "ProbeRaises": case(fields={"probe": "broken_probes:raises"}),
    "ProbeSlow": case(fields={"probe": "broken_probes:slow"}),
    "ProbeNoRemedy": case(fields={"probe": "broken_probes:no_remedy"}),
    "ProbeMoody": case(fields={"probe": "broken_probes:moody"}),
    "ProbeHeavy": case(fields={"probe": "broken_probes:heavy"}),
    "ProbeSetsVariable": case(fields={"probe": "broken_probes:sets_variable"}),
    "HandlesOthers": case(fields={"handles": [("cuda", None)]}),
    "Declared": case("OtherConvention", solution=DECLARED),
    "ReturnsDestination": case("ReturnsDestination", solution=DESTINATION),
    "OneConvention": case("OneConvention", other_style=DESTINATION),
    "Unmet": case(failing=(UNMET,)),
    "KeepsByName": case("KeepsByName", twin=TWIN),
    "SharesModules": case("SharesModules", twin=TWIN),
    "Tolerates": case("SetsVariable", tolerates={"env:TOY_ARCH_LIST": "the toy library wants it"}),
    **{
        name: compiled(name)
        for name in (
            "CompilesInBuild",
            "CompilesAlways",
            "CompilesTwice",
            "IgnoresOptions",
            "ChokesOnOptions",
            "IgnoresDefinition",
            "HashesSources",
            "TrustsTheDisk",
            "TrustsSizes",
            "FillsInPlace",
        )
    },
    **{
        name: case(name)
        for name in (
            "Plain",
            "WantsArguments",
            "UnsafePrefix",
            "UnsafeFolder",
            "TakesAll",
            "TakesNothing",
            "ReturnsFunction",
            "Refuses",
            "WrongMetadata",
            "SwapsNames",
            "SwapsArguments",
            "WorksOnce",
            "IgnoresSymbol",
            "RaisesAttributeError",
            "HidesSymbol",
            "RaisesSyntaxError",
            "LongMessage",
            "NamelessMessage",
            "NoLog",
            "Unpicklable",
            "ForgetsLog",
            "WritesAnywhere",
            "DropsUnsafe",
            "BearsGrudges",
            "CleanerRaises",
            "CleansShared",
            "KeepsRunnables",
            "Prints",
            "CompilerPrints",
            "SetsVariable",
            "ExtendsPath",
            "TakesSignal",
            "SetsSeed",
            "WritesToTemp",
            "LeavesLog",
            "NeedsTests",
            "OneAtATime",
            "NoLock",
        )
    },
}


def _suite(given):
    class Suite(BuilderConformance):
        @pytest.fixture
        def case(self):
            return given

    return Suite


globals().update({f"Test{name}": _suite(given) for name, given in CASES.items()})


class TestNoCase(BuilderConformance):
    """Somebody forgot the fixture."""
