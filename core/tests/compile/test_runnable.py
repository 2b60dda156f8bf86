from __future__ import annotations

import gc
import threading
import weakref
from collections import OrderedDict, namedtuple

import pytest
import torch

from flashinfer_bench.compile import Runnable, RunnableMetadata, list_outputs
from flashinfer_bench.compile.outputs import copy_outputs, unpack
from flashinfer_bench.data import Definition

MATRIX = {"shape": ["n", "k"], "dtype": "float32"}
X = torch.arange(8.0).reshape(2, 4)
Y = torch.ones(2, 4)


def add(x, y):
    return x + y


def add_into(x, y, z):
    z.copy_(x + y)


@pytest.fixture
def make(definition):
    """Return a function that makes a runnable for `definition`, or another one, or none."""

    def build(function, *, dps=False, of=definition, cleaner=None):
        metadata = RunnableMetadata(
            build_type="test",
            definition_name=of.name if of else "none",
            solution_name="my_kernel",
            destination_passing_style=dps,
            definition=of,
        )
        return Runnable(function, metadata, cleaner)

    return build


class TestMetadata:
    def test_defaults(self):
        metadata = RunnableMetadata(build_type="triton", definition_name="d", solution_name="s")
        assert metadata.destination_passing_style is True
        assert metadata.definition is None
        assert metadata.misc == {}

    def test_the_definition_is_kept_as_it_is(self, definition):
        metadata = RunnableMetadata(
            build_type="x", definition_name="d", solution_name="s", definition=definition
        )
        assert metadata.definition is definition

    def test_it_can_be_written_as_json(self, definition):
        metadata = RunnableMetadata(
            build_type="x", definition_name="d", solution_name="s", definition=definition
        )
        assert RunnableMetadata.model_validate_json(metadata.model_dump_json()) == metadata


class TestCall:
    def test_by_position(self, make):
        assert torch.equal(make(add)(X, Y), X + Y)

    def test_by_name(self, make):
        assert torch.equal(make(lambda a, b: a - b)(y=Y, x=X), X - Y)

    def test_by_position_and_by_name(self, make):
        assert torch.equal(make(lambda a, b: a - b)(X, y=Y), X - Y)

    def test_a_destination_passing_function_by_position(self, make):
        z = torch.empty(2, 4)
        assert make(add_into, dps=True)(X, Y, z) is None
        assert torch.equal(z, X + Y)

    def test_a_destination_passing_function_by_name_allocates(self, make):
        assert torch.equal(make(add_into, dps=True)(x=X, y=Y), X + Y)

    def test_a_destination_passing_function_by_name_with_outputs(self, make):
        z = torch.empty(2, 4)
        assert make(add_into, dps=True)(x=X, y=Y, z=z) is None
        assert torch.equal(z, X + Y)

    @pytest.mark.parametrize(
        ("returned", "expected"),
        [
            ((5,), 5),
            ((), None),
            (None, None),
            ((1, 2), (1, 2)),
            ([1], [1]),
            (7, 7),
            ({"z": 3}, 3),
            (OrderedDict(z=3), 3),
            (namedtuple("One", "z")(4), 4),
        ],
        ids=repr,
    )
    def test_outputs_are_unpacked(self, make, returned, expected):
        runnable = make(lambda x, y: returned)
        for _ in range(2):  # the second call goes another way
            assert runnable(X, Y) == expected
            assert runnable(x=X, y=Y) == expected

    def test_what_is_returned_may_change_from_call_to_call(self, make):
        answers = iter([X, (X,), X, {"z": X}, None, (), X])
        runnable = make(lambda x, y: next(answers))
        results = [runnable(X, Y) for _ in range(7)]
        assert [result is X for result in results] == [True] * 4 + [False, False, True]

    def test_outputs_by_name_are_put_in_order(self, make, make_definition):
        definition = make_definition(outputs={"a": MATRIX, "b": MATRIX})
        runnable = make(lambda x, y: {"b": 2, "a": 1}, of=definition)
        assert runnable(X, Y) == (1, 2)

    def test_without_a_definition_names_go_to_the_function(self, make):
        runnable = make(lambda *, left, right: (left - right,), of=None)
        assert runnable(left=3, right=1) == 2

    def test_a_missing_argument_by_name(self, make):
        with pytest.raises(ValueError, match="y"):
            make(add)(x=X)

    def test_an_unknown_argument_by_name(self, make):
        with pytest.raises(ValueError, match="w"):
            make(add)(x=X, w=Y)

    def test_errors_of_the_function_come_through(self, make):
        def broken(x, y):
            raise ZeroDivisionError("inside")

        with pytest.raises(ZeroDivisionError, match="inside"):
            make(broken)(X, Y)

    def test_no_inputs_at_all(self, make):
        definition = Definition(
            name="d",
            op_type="op",
            axes={"k": {"type": "const", "value": 2}},
            inputs={},
            outputs={"z": {"shape": ["k"], "dtype": "int32"}},
            reference="def run():\n    return 1\n",
        )
        assert make(lambda: 1, of=definition)() == 1
        filled = make(lambda z: z.fill_(3), of=definition, dps=True).call_value_returning()
        assert filled.tolist() == [3, 3]

    def test_it_tells_what_it_is(self, make):
        assert repr(make(add)) == "<Runnable 'my_kernel': test>"


class TestValueReturning:
    def test_of_a_value_returning_function(self, make):
        assert torch.equal(make(add).call_value_returning(X, Y), X + Y)

    def test_of_a_destination_passing_function(self, make):
        found = make(add_into, dps=True).call_value_returning(X, Y)
        assert torch.equal(found, X + Y)

    def test_each_call_gets_outputs_of_its_own(self, make):
        runnable = make(add_into, dps=True)
        first, second = runnable.call_value_returning(X, Y), runnable.call_value_returning(X, X)
        assert torch.equal(first, X + Y)
        assert torch.equal(second, X + X)

    def test_several_outputs_of_several_types(self, make, make_definition):
        definition = make_definition(
            outputs={
                "a": {"shape": ["k", "n", "3"], "dtype": "bfloat16"},
                "b": {"shape": ["n"], "dtype": "bool"},
                "c": {"shape": None, "dtype": "int64"},
            }
        )

        def fill(x, y, a, b, c):
            a.fill_(1)
            b.fill_(True)
            c.fill_(9)

        a, b, c = make(fill, of=definition, dps=True).call_value_returning(X, Y)
        assert (tuple(a.shape), a.dtype) == ((4, 2, 3), torch.bfloat16)
        assert b.tolist() == [True, True]
        assert c.item() == 9
        assert c.shape == ()

    def test_outputs_are_contiguous_whatever_the_inputs_are(self, make):
        turned = torch.arange(8.0).reshape(4, 2).t()
        seen = []
        make(lambda x, y, z: seen.append(z), dps=True).call_value_returning(turned, Y)
        assert tuple(seen[0].shape) == (2, 4)
        assert seen[0].is_contiguous()

    def test_outputs_need_no_gradient(self, make):
        x = X.clone().requires_grad_()
        seen = []
        make(lambda x, y, z: seen.append(z), dps=True).call_value_returning(x, Y)
        assert not seen[0].requires_grad

    def test_outputs_are_on_the_device_of_the_first_tensor(self, make, make_definition):
        inputs = {"s": {"shape": None, "dtype": "float32"}, "x": MATRIX, "y": MATRIX}
        for outputs in ({"z": MATRIX}, {"z": MATRIX, "w": {"shape": ["n"], "dtype": "int8"}}):
            definition = make_definition(inputs, outputs)
            seen = []
            runnable = make(lambda *args, seen=seen: seen.extend(args[3:]), of=definition, dps=True)
            runnable.call_value_returning(0.5, X.to("meta"), Y)
            assert {tensor.device.type for tensor in seen} == {"meta"}

    def test_sizes_of_zero(self, make):
        empty = torch.empty(0, 4)
        found = make(add_into, dps=True).call_value_returning(empty, empty)
        assert tuple(found.shape) == (0, 4)

    def test_an_axis_that_no_input_shows_is_named(self, make, make_definition):
        definition = make_definition(
            inputs={"x": {"shape": ["k"], "dtype": "float32"}},
            outputs={"z": {"shape": ["n", "k"], "dtype": "float32"}},
        )
        with pytest.raises(ValueError, match=r"output 'z' .* no input has axis 'n'"):
            make(add_into, of=definition, dps=True).call_value_returning(torch.ones(4))

    @pytest.mark.parametrize("dps", [True, False])
    @pytest.mark.parametrize("count", [0, 1, 3, 5])
    def test_a_wrong_number_of_arguments_names_both_right_ones(self, make, dps, count):
        with pytest.raises(ValueError, match=f"got {count} arguments; .* takes 2, .* call 3"):
            make(add, dps=dps).call_value_returning(*[X] * count)

    def test_a_destination_passing_function_needs_the_definition(self, make):
        with pytest.raises(ValueError, match="'my_kernel' hold no definition"):
            make(add_into, of=None, dps=True).call_value_returning(X, Y)

    def test_a_value_returning_function_does_not(self, make):
        assert make(lambda x: (x,), of=None).call_value_returning(4) == 4


class TestDestinationPassing:
    def test_of_a_destination_passing_function(self, make):
        z = torch.empty(2, 4)
        assert make(add_into, dps=True).call_destination_passing(X, Y, z) is None
        assert torch.equal(z, X + Y)

    def test_what_such_a_function_returns_is_dropped(self, make):
        runnable = make(lambda x, y, z: z, dps=True)
        assert runnable.call_destination_passing(X, Y, X) is None

    def test_of_a_value_returning_function(self, make):
        z = torch.empty(2, 4)
        make(add).call_destination_passing(X, Y, z)
        assert torch.equal(z, X + Y)

    def test_into_a_view(self, make):
        base = torch.zeros(4, 2)
        make(add).call_destination_passing(X, Y, base.t())
        assert torch.equal(base, (X + Y).t())

    @pytest.mark.parametrize(
        "returned",
        [lambda a, b: (a, b), lambda a, b: [a, b], lambda a, b: {"b": b, "a": a}],
        ids=["tuple", "list", "dict"],
    )
    def test_several_outputs_however_they_are_returned(self, make, make_definition, returned):
        definition = make_definition(outputs={"a": MATRIX, "b": MATRIX})
        runnable = make(lambda x, y: returned(x + y, x - y), of=definition)
        a, b = torch.empty(2, 4), torch.empty(2, 4)
        runnable.call_destination_passing(X, Y, a, b)
        assert torch.equal(a, X + Y)
        assert torch.equal(b, X - Y)

    @pytest.mark.parametrize("value", [2.5, 3, True])
    def test_a_python_number_fills_a_scalar_output(self, make, make_definition, value):
        definition = make_definition(outputs={"s": {"shape": None, "dtype": "float32"}})
        s = torch.empty(())
        make(lambda x, y: value, of=definition).call_destination_passing(X, Y, s)
        assert s.item() == float(value)

    def test_another_shape_is_refused_with_both(self, make):
        with pytest.raises(ValueError, match=r"'z': returned \[4, 2\] .* destination is \[2, 4\]"):
            make(lambda x, y: x.t()).call_destination_passing(X, Y, torch.empty(2, 4))

    def test_a_shape_that_would_broadcast_is_refused_too(self, make):
        with pytest.raises(ValueError, match=r"returned \[1, 4\]"):
            make(lambda x, y: x[:1]).call_destination_passing(X, Y, torch.empty(2, 4))

    def test_another_type_is_refused_with_both(self, make):
        with pytest.raises(ValueError, match=r"float64, but the destination .* torch.float32"):
            make(lambda x, y: x.double()).call_destination_passing(X, Y, torch.empty(2, 4))

    @pytest.mark.parametrize("returned", [(), (X, X), None])
    def test_another_number_is_refused(self, make, returned):
        with pytest.raises(ValueError, match="outputs for 1 destinations: z"):
            make(lambda x, y: returned).call_destination_passing(X, Y, torch.empty(2, 4))

    def test_other_names_are_refused(self, make):
        with pytest.raises(ValueError, match="returned outputs w, but 'add_k4' declares z"):
            make(lambda x, y: {"w": x}).call_destination_passing(X, Y, torch.empty(2, 4))

    @pytest.mark.parametrize("dps", [True, False])
    @pytest.mark.parametrize("count", [0, 2, 4])
    def test_a_wrong_number_of_arguments_names_both_right_ones(self, make, dps, count):
        with pytest.raises(ValueError, match=f"got {count} arguments; .* takes 2, .* call 3"):
            make(add, dps=dps).call_destination_passing(*[X] * count)

    def test_a_value_returning_function_needs_the_definition(self, make):
        with pytest.raises(ValueError, match="hold no definition"):
            make(add, of=None).call_destination_passing(X, Y, X)

    def test_a_destination_passing_function_does_not(self, make):
        seen = []
        make(lambda *args: seen.append(len(args)), of=None, dps=True).call_destination_passing(1, 2)
        assert seen == [2]


class TestCleanup:
    def test_the_cleaner_runs_once(self, make):
        calls = []
        runnable = make(add, cleaner=lambda: calls.append(1))
        runnable.cleanup()
        runnable.cleanup()
        runnable.close()
        assert calls == [1]

    def test_without_a_cleaner_it_is_fine(self, make):
        make(add).cleanup()

    def test_threads_that_clean_at_once_run_it_once(self, make):
        calls = []
        runnable = make(add, cleaner=lambda: calls.append(1))
        threads = [threading.Thread(target=runnable.cleanup) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert calls == [1]

    def test_an_error_in_the_cleaner_comes_through_and_it_stays_closed(self, make):
        def broken():
            raise OSError("busy")

        runnable = make(add, cleaner=broken)
        with pytest.raises(OSError, match="busy"):
            runnable.cleanup()
        assert runnable.closed
        runnable.cleanup()

    @pytest.mark.parametrize(
        "call",
        [
            lambda r: r(X, Y),
            lambda r: r(x=X, y=Y),
            lambda r: r.call_value_returning(X, Y),
            lambda r: r.call_destination_passing(X, Y, X.clone()),
            lambda r: r.call_kwargs(x=X, y=Y),
        ],
    )
    def test_afterwards_every_call_says_so(self, make, call):
        runnable = make(add)
        assert not runnable.closed
        runnable.cleanup()
        assert runnable.closed
        with pytest.raises(RuntimeError, match="'my_kernel' has been cleaned up; build it again"):
            call(runnable)

    def test_the_function_is_let_go(self, make):
        def local(x, y):
            return x

        runnable, reference = make(local), weakref.ref(local)
        runnable.cleanup()
        del local
        gc.collect()
        assert reference() is None


class TestListOutputs:
    @pytest.mark.parametrize(
        ("result", "expected"),
        [
            (None, []),
            (3, [3]),
            ((), []),
            ((1,), [1]),
            ((1, 2), [1, 2]),
            ([1, 2], [1, 2]),
            ({"z": 1}, [1]),
        ],
    )
    def test_every_form_becomes_a_list(self, definition, result, expected):
        assert list_outputs(result, definition) == expected

    def test_a_tensor_is_one_output_and_not_a_sequence_of_rows(self, definition):
        assert list_outputs(X, definition)[0] is X

    def test_without_a_definition_a_mapping_keeps_its_order(self):
        assert list_outputs({"b": 1, "a": 2}, None) == [1, 2]
        assert unpack({"b": 1}, None) == {"b": 1}

    @pytest.mark.parametrize("held", [(1, 2), [1, 2], {"z": 1}, {"z": 1, "y": 2}])
    @pytest.mark.parametrize("with_definition", [True, False])
    def test_methods_of_a_subclass_are_not_called(self, definition, held, with_definition):
        def late(self, *rest):
            raise AssertionError("it was asked")

        names = ("__iter__", "__len__", "__getitem__", "keys", "values", "items", "__contains__")
        kind = type("Late", (type(held),), dict.fromkeys(names, late))
        if with_definition and isinstance(held, dict) and len(held) > 1:
            with pytest.raises(ValueError, match="returned outputs z, y"):
                list_outputs(kind(held), definition)
            return
        expected = [*held.values()] if isinstance(held, dict) else [*held]
        assert list_outputs(kind(held), definition if with_definition else None) == expected

    def test_an_object_does_not_say_itself_what_it_is(self, definition):
        class Late:
            @property
            def __class__(self):
                raise AssertionError("it was asked")

        late = Late()
        assert list_outputs(late, definition)[0] is late

    def test_names_are_plain(self, definition):
        class Late(str):
            def __eq__(self, other):
                raise AssertionError("it was asked")

            def __hash__(self):
                return hash(str(self))

        with pytest.raises(ValueError, match="'add_k4' declares z"):
            list_outputs({Late("z"): 1}, definition)

    @pytest.mark.parametrize("result", [{}, {"z": 1, "w": 2}, {"Z": 1}, {1: 2}])
    def test_names_must_match(self, definition, result):
        with pytest.raises(ValueError, match="'add_k4' declares z"):
            list_outputs(result, definition)

    def test_copying_needs_as_many(self):
        with pytest.raises(ValueError, match="returned 1 outputs for 0 destinations: none"):
            copy_outputs([X], [], [])
