"""Slots, and the board that fills them."""

from __future__ import annotations

import gc
import inspect
import logging
import os
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.integration.slots import Board, Slot, no_fallback


class Runtime:
    """Answers with its own label, and notes what it was asked."""

    def __init__(self, label, *names, routes=None):
        self.label = label
        self.known = names
        self.routes = routes
        self.asked = []

    def __repr__(self):
        return f"<{self.label}>"

    def names(self):
        return self.known

    def route(self, name, slot):
        self.asked.append((name, slot))
        if self.routes is not None:
            return self.routes(name, slot)
        return lambda args, kwargs, fallback: (self.label, name, args, kwargs)

    def stop(self):
        raise NotImplementedError


def original(*args, **kwargs):
    return ("original", args, kwargs)


def take(board, name, *args, fallback=original, **kwargs):
    """Make a call in the function form."""
    call = board.call_of(name)
    if call is None:
        return fallback(*args, **kwargs)
    return call(args, kwargs or None, fallback)


def through(slot, *args, name=None, fallback=original, **kwargs):
    """Make a call as a wrapper does."""
    if slot.name is None:
        call = slot.routes[name] if slot.routes is not None else None
    else:
        call = slot.call
    if call is None:
        return fallback(*args, **kwargs)
    return call(args, kwargs or None, fallback)


@pytest.fixture
def board():
    return Board()


@pytest.fixture
def slot(board):
    made = Slot("d", "module.function", inspect.signature(lambda x: x))
    board.connect(made)
    return made


class TestASlot:
    def test_is_empty_at_first(self, board, slot):
        assert slot.call is None
        assert slot.routes is None
        assert board.slots() == [slot]

    def test_tells_what_it_is(self, slot):
        assert repr(slot) == "<Slot 'module.function': d>"
        assert "several" in repr(Slot(None, "f"))

    def test_is_filled_by_the_runtime_that_starts(self, board, slot):
        runtime = Runtime("a", "d")
        board.push(runtime)
        assert through(slot, 1) == ("a", "d", (1,), None)
        assert runtime.asked == [("d", slot)]

    def test_is_filled_if_it_comes_later(self, board):
        board.push(Runtime("a", "d"))
        later = Slot("d", "f")
        board.connect(later)
        assert through(later)[0] == "a"

    def test_asks_once(self, board, slot):
        runtime = Runtime("a", "d")
        board.push(runtime)
        for _ in range(3):
            through(slot)
        assert len(runtime.asked) == 1

    def test_does_not_ask_before_it_is_called(self, board, slot):
        runtime = Runtime("a", "d")
        board.push(runtime)
        assert runtime.asked == []
        assert slot.call is not None

    def test_stays_empty_if_the_definition_is_not_known(self, board, slot):
        board.push(Runtime("a", "other"))
        assert slot.call is None

    def test_is_empty_after_a_runtime_that_takes_no_call_from_there(self, board, slot):
        board.push(Runtime("a", "d", routes=lambda name, slot: None))
        assert through(slot, 1, k=2) == ("original", (1,), {"k": 2})
        assert slot.call is None

    def test_goes_away_with_its_function(self, board):
        made = Slot("d", "f")
        board.connect(made)
        board.push(Runtime("a", "d"))
        seen = weakref.ref(made)
        del made
        gc.collect()
        assert seen() is None
        assert board.slots() == []

    def test_goes_away_after_it_has_been_called_as_well(self, board):
        made = Slot("d", "f")
        board.connect(made)
        board.push(Runtime("a", "d"))
        through(made)
        seen = weakref.ref(made)
        del made
        gc.collect()
        # The runtime of this test remembers whom it was asked for.
        board.top().asked.clear()
        gc.collect()
        assert seen() is None


class TestASlotWithoutAName:
    @pytest.fixture
    def slot(self, board):
        made = Slot(None, "module.function")
        board.connect(made)
        return made

    def test_has_a_route_for_each_definition(self, board, slot):
        board.push(Runtime("a", "d", "e"))
        assert through(slot, 1, name="d") == ("a", "d", (1,), None)
        assert through(slot, 1, name="e") == ("a", "e", (1,), None)
        assert slot.call is None

    def test_has_none_for_others(self, board, slot):
        board.push(Runtime("a", "d"))
        assert through(slot, 1, name="e") == ("original", (1,), {})

    def test_has_none_at_all_if_nothing_is_active(self, board, slot):
        runtime = Runtime("a", "d")
        board.push(runtime)
        board.remove(runtime)
        assert slot.routes is None

    def test_asks_once_for_each_name(self, board, slot):
        runtime = Runtime("a", "d")
        board.push(runtime)
        for _ in range(3):
            through(slot, name="d")
        assert runtime.asked == [("d", slot)]

    def test_keeps_only_so_many_unknown_names(self, board, slot):
        board.push(Runtime("a", "d"))
        for index in range(5000):
            assert slot.routes[f"unknown{index}"] is None
        assert len(slot.routes) <= 1024
        assert through(slot, name="d")[0] == "a"

    @pytest.mark.parametrize("name", [None, 3, ("d",), b"d"])
    def test_takes_no_name_that_is_none(self, board, slot, name):
        board.push(Runtime("a", "d"))
        assert slot.routes[name] is None


class TestSeveralRuntimes:
    def test_the_last_one_decides(self, board, slot):
        board.push(Runtime("a", "d"))
        board.push(Runtime("b", "d"))
        assert through(slot)[0] == "b"
        assert take(board, "d")[0] == "b"

    def test_the_last_one_decides_alone(self, board, slot):
        board.push(Runtime("a", "d"))
        board.push(Runtime("b", "e"))
        assert through(slot)[0] == "original"
        assert take(board, "d")[0] == "original"

    def test_the_one_before_is_back_afterwards(self, board, slot):
        outer, inner = Runtime("a", "d"), Runtime("b", "d")
        board.push(outer)
        board.push(inner)
        assert board.remove(inner)
        assert through(slot)[0] == "a"
        assert board.top() is outer

    def test_an_outer_one_may_go_first(self, board, slot):
        outer, inner = Runtime("a", "d"), Runtime("b", "d")
        board.push(outer)
        board.push(inner)
        assert board.remove(outer)
        assert through(slot)[0] == "b"
        assert board.remove(inner)
        assert through(slot)[0] == "original"

    def test_removing_twice_does_nothing(self, board):
        runtime = Runtime("a", "d")
        board.push(runtime)
        assert board.remove(runtime)
        assert not board.remove(runtime)

    def test_one_that_is_pushed_again_comes_to_the_top(self, board):
        outer, inner = Runtime("a"), Runtime("b")
        board.push(outer)
        board.push(inner)
        board.push(outer)
        assert board.active == (inner, outer)

    def test_one_takes_the_place_of_another(self, board, slot):
        first, second, third = Runtime("a", "d"), Runtime("b", "d"), Runtime("c", "d")
        board.push(first)
        board.push(second)
        assert board.replace(first, third)
        assert board.active == (third, second)
        assert board.replace(second, first)
        assert through(slot)[0] == "a"
        assert not board.replace(second, first)

    def test_all_may_go_at_once(self, board, slot):
        board.push(Runtime("a", "d"))
        board.push(Runtime("b", "d"))
        board.clear()
        assert board.top() is None
        assert slot.call is None

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=30))
    def test_it_is_a_stack_from_which_any_may_be_taken(self, steps):
        board, model = Board(), []
        slot = Slot("d", "f")
        board.connect(slot)
        runtimes = [Runtime(index, "d") for index in range(4)]
        for push, index in steps:
            if push:
                board.push(runtimes[index])
                model = [each for each in model if each != index] + [index]
            else:
                board.remove(runtimes[index])
                model = [each for each in model if each != index]
            assert [each.label for each in board.active] == model
            expected = model[-1] if model else "original"
            assert through(slot)[0] == take(board, "d")[0] == expected


class TestPublishing:
    def test_slots_ask_anew(self, board, slot):
        runtime = Runtime("a", "d")
        board.push(runtime)
        through(slot)
        runtime.label = "new"
        runtime.known = ("d", "e")
        board.publish(runtime)
        assert through(slot)[0] == "new"
        assert take(board, "e")[0] == "new"
        assert len(runtime.asked) == 3

    def test_one_that_is_not_the_innermost_changes_nothing(self, board, slot):
        outer, inner = Runtime("a", "d"), Runtime("b", "d")
        board.push(outer)
        board.push(inner)
        through(slot)
        before = slot.call
        board.publish(outer)
        assert slot.call is before

    def test_a_call_that_began_earlier_does_not_bring_the_old_back(self, board, slot):
        runtime = Runtime("a", "d")
        began, go_on = threading.Event(), threading.Event()

        def slowly(name, slot):
            began.set()
            assert go_on.wait(10)
            return lambda args, kwargs, fallback: "old"

        board.push(Runtime("slow", "d", routes=slowly))
        found = []
        thread = threading.Thread(target=lambda: found.append(through(slot)))
        thread.start()
        assert began.wait(10)
        board.push(runtime)
        go_on.set()
        thread.join()
        assert found == ["old"]
        assert through(slot)[0] == "a"

    def test_the_function_form_s_table_is_replaced_as_a_whole(self, board):
        board.push(Runtime("a", "d", "e"))
        before = board.calls
        board.push(Runtime("b", "d"))
        assert board.calls is not before
        assert set(before) == {"d", "e"}

    def test_under_load_each_call_is_answered_by_one_that_was_active(self, board, slot):
        runtimes = [Runtime(index, "d") for index in range(3)]
        for runtime in runtimes:
            board.push(runtime)
        wrong, stop = [], threading.Event()

        def work():
            while not stop.is_set():
                for answer in (through(slot, 5), take(board, "d", 5)):
                    if answer[0] not in (0, 1, 2) or answer[1:] != ("d", (5,), None):
                        wrong.append(answer)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for step in range(300):
            board.push(runtimes[step % 3])
            board.publish(runtimes[step % 3])
        stop.set()
        for thread in threads:
            thread.join()
        assert wrong == []


class TestTheFunctionForm:
    def test_finds_what_is_active(self, board):
        board.push(Runtime("a", "d"))
        assert take(board, "d", 1, k=2) == ("a", "d", (1,), {"k": 2})

    def test_asks_for_no_slot(self, board):
        runtime = Runtime("a", "d")
        board.push(runtime)
        take(board, "d")
        take(board, "d")
        assert runtime.asked == [("d", None)]

    def test_a_definition_that_is_not_taken_runs_the_fallback(self, board):
        board.push(Runtime("a", "d", routes=lambda name, slot: None))
        assert take(board, "d", 1) == ("original", (1,), {})
        assert take(board, "d", 1) == ("original", (1,), {})

    def test_or_says_that_there_is_none(self, board):
        board.push(Runtime("a", "d", routes=lambda name, slot: None))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="'d'"):
                take(board, "d", fallback=None)

    def test_unknown_names_leave_nothing_behind(self, board):
        board.push(Runtime("a", "d"))
        board.observe(lambda *_: None)
        before = len(board.calls)
        for index in range(3000):
            take(board, f"unknown{index}")
        assert len(board.calls) == before

    def test_the_message_says_why(self):
        assert "apply is not enabled" in no_fallback("d", "whatever")


class TestARuntimeThatFails:
    def fail(self, name, slot):
        raise ZeroDivisionError("no route")

    def test_costs_nothing_but_itself(self, board, slot, caplog):
        board.push(Runtime("a", "d", routes=self.fail))
        assert through(slot, 1) == ("original", (1,), {})
        assert "'d'" in caplog.text
        assert "ZeroDivisionError" in caplog.text

    def test_is_logged_once_for_a_slot(self, board, slot, caplog):
        board.push(Runtime("a", "d", routes=self.fail))
        for _ in range(3):
            through(slot)
        assert len(caplog.records) == 1


class TestObservers:
    @pytest.fixture
    def seen(self):
        return []

    def note(self, seen):
        return lambda *call: seen.append(call)

    def test_are_told_of_calls_that_nothing_takes(self, board, slot, seen):
        board.observe(self.note(seen))
        assert through(slot, 1, k=2) == ("original", (1,), {"k": 2})
        assert seen == [("d", slot, (1,), {"k": 2})]

    def test_are_told_of_calls_that_are_taken(self, board, slot, seen):
        board.push(Runtime("a", "d"))
        board.observe(self.note(seen))
        assert through(slot, 1)[0] == "a"
        assert seen == [("d", slot, (1,), None)]

    def test_are_told_of_each_call(self, board, slot, seen):
        board.observe(self.note(seen))
        board.push(Runtime("a", "d"))
        for _ in range(3):
            through(slot)
        assert len(seen) == 3

    def test_may_be_for_one_definition(self, board, seen):
        d, e = Slot("d", "f"), Slot("e", "g")
        board.connect(d)
        board.connect(e)
        board.observe(self.note(seen), "e")
        through(d)
        through(e)
        assert [name for name, *_ in seen] == ["e"]
        assert d.call is None

    def test_are_told_in_the_function_form(self, board, seen):
        board.observe(self.note(seen), "d")
        take(board, "d", 1)
        take(board, "e", 1)
        assert seen == [("d", None, (1,), None)]

    def test_are_told_of_any_name_in_the_function_form(self, board, seen):
        board.observe(self.note(seen))
        assert take(board, "whatever", 1) == ("original", (1,), {})
        assert seen == [("whatever", None, (1,), None)]

    def test_are_told_of_calls_of_a_slot_without_a_name(self, board, seen):
        unnamed = Slot(None, "f")
        board.connect(unnamed)
        board.observe(self.note(seen))
        through(unnamed, 1, name="x")
        assert seen == [("x", unnamed, (1,), None)]

    def test_cost_nothing_when_they_have_ended(self, board, slot, seen):
        end = board.observe(self.note(seen))
        end()
        end()
        assert slot.call is None
        through(slot)
        assert seen == []

    def test_end_one_by_one(self, board, slot, seen):
        first, second = [], []
        end = board.observe(self.note(first))
        board.observe(self.note(second))
        through(slot)
        end()
        through(slot)
        assert (len(first), len(second)) == (1, 2)

    def test_that_fail_are_logged_and_break_nothing(self, board, slot, caplog):
        def fail(*_):
            raise ZeroDivisionError

        board.observe(fail)
        board.push(Runtime("a", "d"))
        with caplog.at_level(logging.WARNING):
            assert through(slot)[0] == "a"
        assert "ZeroDivisionError" in caplog.text

    def test_what_a_call_raises_goes_on_to_the_caller(self, board, slot, seen):
        board.observe(self.note(seen))

        def failing(*_):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            through(slot, fallback=failing)


class TestTheEnvironment:
    def test_is_asked_once(self, board):
        assert not board.quiet
        assert not board.asked()
        assert board.asked()
        assert board.quiet

    def test_a_board_with_observers_is_not_quiet(self, board):
        end = board.observe(lambda *_: None)
        board.asked()
        assert not board.quiet
        end()
        assert board.quiet


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_works_although_a_thread_held_the_lock(board, slot):
    board.push(Runtime("a", "d"))
    held, done = threading.Event(), threading.Event()

    def hold():
        with board._lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            board.after_fork()
            board.push(Runtime("b", "d"))
            status = 0 if through(slot)[0] == "b" else 2
        finally:
            os._exit(status)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
