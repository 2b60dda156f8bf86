"""The suite for builders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from flashinfer_bench.testing.builders.caching import CachingChecks
from flashinfer_bench.testing.builders.case import BuilderCase
from flashinfer_bench.testing.builders.errors import ErrorChecks
from flashinfer_bench.testing.builders.interface import CallChecks, InterfaceChecks
from flashinfer_bench.testing.builders.isolation import (
    CleanupChecks,
    ConcurrencyChecks,
    IsolationChecks,
    ProcessChecks,
)
from flashinfer_bench.testing.builders.kit import BuilderKit
from flashinfer_bench.testing.children import Children
from flashinfer_bench.testing.records import RecordConformance, keep

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHILDREN: pytest.StashKey[Children] = pytest.StashKey()


class BuilderConformance(
    RecordConformance,
    InterfaceChecks,
    CallChecks,
    ErrorChecks,
    CleanupChecks,
    IsolationChecks,
    ProcessChecks,
    ConcurrencyChecks,
    CachingChecks,
):
    """All that a builder must keep to.

    Subclass it in a test module, and give it a fixture ``case``.

    Examples
    --------
    ::

        class TestMojoBuilder(BuilderConformance):
            @pytest.fixture
            def case(self):
                definition = sample_definition()
                solution = make_solution(
                    definition, {"kernel.mojo": KERNEL}, "kernel.mojo::run", language="mojo"
                )
                (record,) = fib_builder_mojo.fib_register_builders()
                return BuilderCase(record=record, definition=definition, solution=solution)
    """

    kind: ClassVar[str] = "builder"
    case_type: ClassVar[type] = BuilderCase

    @pytest.fixture
    def kit(
        self,
        given: BuilderCase,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> Iterator[BuilderKit]:
        """Give the case, with a cache that all tests of the class share."""
        cache = keep(
            request,
            ("cache", *BuilderKit.key(given)),
            lambda: tmp_path_factory.mktemp("conformance-cache"),
        )
        monkeypatch.setenv("FIB_CACHE_PATH", str(cache))
        kit = BuilderKit(given, request, cache, _children(request, tmp_path_factory))
        yield kit
        kit.close_all()


def _children(request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> Children:
    """Return what starts processes, one for the whole session."""
    stash: Any = request.config.stash
    if _CHILDREN not in stash:
        stash[_CHILDREN] = Children(folders.mktemp("conformance-children"))
        request.config.add_cleanup(stash[_CHILDREN].close)
    children: Children = stash[_CHILDREN]
    return children
