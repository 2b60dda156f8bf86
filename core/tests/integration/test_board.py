"""The board's surroundings: where things are imported from, bounds, and what may go wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from textwrap import dedent

import pytest

from flashinfer_bench.integration import board as board_module
from flashinfer_bench.integration import slots
from flashinfer_bench.integration.board import Board
from flashinfer_bench.integration.places import Slot
from flashinfer_bench.integration.watchers import Everything


class Names(Collection):
    """A runtime or watcher that is, as a collection, empty."""

    def __init__(self, *names):
        self.known = names

    def __contains__(self, name):
        return False

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def names(self):
        return self.known

    def route(self, name, slot):
        return lambda args, kwargs, fallback: (name, args)

    def watch(self, name, slot):
        return lambda args, kwargs: None


def run(code):
    command = [sys.executable, "-c", dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def board():
    return Board()


class TestOneRoof:
    @pytest.mark.parametrize("name", slots.__all__)
    def test_has_everything(self, name):
        assert getattr(slots, name) is not None

    def test_of_the_very_classes(self):
        assert slots.Board is Board
        assert slots.Slot is Slot
        assert slots.Everything is Everything
        assert type(slots.board) is Board

    @pytest.mark.parametrize("module", ["slots", "board", "places", "watchers"])
    def test_importing_is_light(self, module):
        done = run(f"""
            import sys
            import flashinfer_bench.integration.{module}
            heavy = ("torch", "pydantic", "numpy", "flashinfer_bench.integration.installation")
            print([each for each in heavy if each in sys.modules])
        """)
        assert done.stdout.strip() == "[]", done.stderr


class TestWanted:
    def test_of_a_runtime_that_is_empty_as_a_collection(self, board):
        board.push(Names("a"))
        board.watch(Names("b", "a"))
        assert board.wanted() == ["a", "b"]

    def test_of_nobody(self, board):
        assert board.wanted() == []

    def test_of_the_innermost_alone(self, board):
        board.push(Names("a"))
        board.push(Names("b"))
        assert board.wanted() == ["b"]


class TestBounds:
    def test_names_without_end_that_somebody_watches(self, board, monkeypatch):
        monkeypatch.setattr(board_module, "_MOST_KNOWN", 50)
        slot, seen = Slot(None, "f"), []
        board.connect(slot)
        board.observe(lambda name, *_: seen.append(name))
        for index in range(200):
            call = slot.routes[f"made_up_{index}"]
            assert call((index,), None, lambda x: -x) == -index
        assert len(slot.routes) == 50
        assert seen == [f"made_up_{index}" for index in range(200)], "all of them are told of"

    def test_names_that_are_known_have_room_beside_those_that_are_not(self, board):
        slot = Slot(None, "f")
        board.connect(slot)
        board.push(Names("d"))
        for index in range(2000):
            assert slot.routes[f"unknown_{index}"] is None
        assert slot.routes["d"]((1,), None, None) == ("d", (1,))
        assert "d" in slot.routes


class TestMessage:
    def test_of_a_board_is_its_own(self, board):
        assert "apply is not enabled" in board.no_fallback("d")
        board.push(Names("d"))
        assert "they are of another size" in board.no_fallback("d", "they are of another size")
        assert slots.no_fallback("d") == slots.board.no_fallback("d")

    def test_of_a_call_that_is_only_watched(self, board):
        board.observe(lambda *_: None)
        with pytest.raises(RuntimeError, match="definition 'd': apply is not enabled"):
            board.call_of("d")((), None, None)

    def test_of_a_runtime_that_knows_what_is_wrong(self, board):
        runtime = Names("d")
        runtime.problems = {"d": "its solution is gone"}
        board.push(runtime)
        assert "its solution is gone" in board.no_fallback("d")


class TestInstalling:
    CODE = """
        import logging, sys
        logging.basicConfig(format="%(name)s: %(message)s")
        sys.modules["flashinfer_bench.integration.installation"] = {broken}
        from flashinfer_bench.integration.slots import board
        end = board.observe(lambda *_: print("told"), "d")
        board.call_of("d")((), None, lambda: print("called"))
        end()
        print(board.in_use)
    """

    @pytest.mark.parametrize("broken", ["None", "type(sys)('broken')"])
    def test_what_cannot_be_imported_costs_adapters_alone(self, broken):
        """An installation with a part missing: everything else goes on."""
        done = run(dedent(self.CODE).format(broken=broken))
        assert done.stdout.split() == ["told", "called", "False"], done.stderr
        assert "slots: adapters are not kept up" in done.stderr

    def test_is_not_looked_for_while_nobody_is_active(self):
        done = run("""
            import sys
            from flashinfer_bench.integration.slots import Slot, board
            board.connect(Slot("d", "f"))
            board.clear()
            print("flashinfer_bench.integration.installation" in sys.modules)
        """)
        assert done.stdout.strip() == "False", done.stderr
