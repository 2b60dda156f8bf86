"""What arguments mean, and what comes back: calls of a library, solutions of a definition."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from flashinfer_bench.apply.apis import Api, Bound, UnroutableError  # noqa: E402
from flashinfer_bench.apply.conventions import convention, unsigned  # noqa: E402
from flashinfer_bench.apply.reconcile import write_back  # noqa: E402
from flashinfer_bench.data import Definition  # noqa: E402
from flashinfer_bench.errors import ConfigError, DataError  # noqa: E402

ROWS = {"shape": ["rows", "hidden"], "dtype": "float32"}


def definition(inputs=("x", "weight"), outputs=("y",), **places):
    """Make a definition; `places` gives the `param` of inputs and outputs."""
    tensors = {name: {**ROWS} for name in (*inputs, *outputs)}
    for name, param in places.items():
        tensors[name]["param"] = param
    return Definition.model_validate(
        {
            "name": "norm_h4",
            "op_type": "norm",
            "axes": {"rows": {"type": "var"}, "hidden": {"type": "const", "value": 4}},
            "inputs": {name: tensors[name] for name in inputs},
            "outputs": {name: tensors[name] for name in outputs},
            "reference": "def run(*inputs):\n    return inputs[0]\n",
        }
    )


def meaning(function, known=None, takes=None, **fields):
    api = Api.of_function(function, "library.norm", **fields)
    return convention(api, "norm_h4", known, takes=takes, original=function)


def rows(value=0.0, count=2):
    return torch.full((count, 4), float(value))


X, W = rows(1), rows(2)


def refused(call, *args, **kwargs):
    with pytest.raises(UnroutableError) as caught:
        call.bind(args, kwargs)
    return caught.value.reason


class TestInputs:
    def test_by_name_in_any_order(self):
        call = meaning(lambda weight, x: None, definition())
        assert list(call.bind((W, X), None).inputs.items()) == [("x", X), ("weight", W)]

    def test_by_position_where_the_names_are_others(self):
        call = meaning(lambda input, weight: None, definition())
        assert call.bind((X,), {"weight": W}).inputs == {"x": X, "weight": W}

    def test_by_the_param_of_the_input(self):
        call = meaning(lambda weight, input: None, definition(x="input"))
        assert call.bind((W, X), None).inputs == {"x": X, "weight": W}

    def test_a_param_that_is_not_there_does_not_count(self):
        call = meaning(lambda x, weight: None, definition(x="input"))
        assert call.bind((X, W), None).inputs == {"x": X, "weight": W}

    def test_the_object_of_a_method_is_none(self):
        call = meaning(lambda self, x, weight: None, definition())
        assert call.bind(("object", X, W), None).inputs == {"x": X, "weight": W}

    def test_what_the_definition_does_not_know_must_have_its_default(self):
        call = meaning(lambda x, weight, eps=1e-6, sinks=None: None, definition())
        assert call.bind((X, W), {"eps": 1e-6}).inputs == {"x": X, "weight": W}
        assert refused(call, X, W, eps=1e-5) == "argument not in the definition"
        assert refused(call, X, W, sinks=X) == "argument not in the definition"

    def test_hints_may_be_anything(self):
        call = meaning(lambda x, weight, enable_pdl=None: None, definition())
        assert call.bind((X, W), {"enable_pdl": True}).inputs == {"x": X, "weight": W}

    def test_hints_of_an_api_are_its_own(self):
        call = meaning(lambda x, weight, tile=8: None, definition(), hints=frozenset({"tile"}))
        assert call.bind((X, W), {"tile": 16}).inputs == {"x": X, "weight": W}

    def test_further_arguments_are_not_of_the_definition(self):
        call = meaning(lambda x, weight, *rest, **more: None, definition())
        assert call.bind((X, W), None).inputs == {"x": X, "weight": W}
        assert refused(call, X, W, X) == "argument not in the definition"
        assert refused(call, X, W, other=1) == "argument not in the definition"

    def test_a_call_that_does_not_fit_is_left_to_the_original(self):
        assert refused(meaning(lambda x, weight: None, definition()), X) == "arguments"

    @pytest.mark.parametrize(
        ("function", "problem"),
        [
            (lambda x: None, "no parameter is input 'weight'"),
            (lambda x, weight, scale: None, "'scale' is neither an input nor an output"),
        ],
    )
    def test_a_signature_that_cannot_be_it(self, function, problem):
        with pytest.raises(ConfigError, match=problem) as caught:
            meaning(function, definition())
        assert "API library.norm cannot be routed to definition 'norm_h4'" in str(caught.value)

    def test_without_a_signature_the_arguments_are_those_of_the_definition(self):
        call = convention(Api("apply('norm_h4')"), "norm_h4", definition())
        assert call.bind((X,), {"weight": W}).inputs == {"x": X, "weight": W}


class TestInputsByName:
    """Without a definition, the names of the API are those of the solution."""

    def test_all_parameters_are_inputs(self):
        call = meaning(lambda x, weight, eps=1e-6: None)
        assert call.bind((X, W), None).inputs == {"x": X, "weight": W, "eps": 1e-6}

    def test_what_the_solution_does_not_take_must_have_its_default(self):
        call = meaning(
            lambda x, weight, eps=1e-6: None,
            takes=dict.fromkeys(
                (
                    "x",
                    "weight",
                ),
                True,
            ),
        )
        assert call.bind((X, W), None).inputs == {"x": X, "weight": W}
        assert refused(call, X, W, 1e-5) == "argument not in the definition"

    def test_what_it_needs_and_the_solution_does_not_take_cannot_be(self):
        with pytest.raises(
            ConfigError, match="the solution takes x: parameter 'weight' is neither"
        ):
            meaning(lambda x, weight: None, takes=dict.fromkeys(("x",), True))

    def test_other_names_are_matched_by_position(self):
        takes = {"hidden_states": True, "weight": True, "eps": False}
        call = meaning(lambda input, weight, eps=1e-6, pdl=None: None, takes=takes)
        found = call.bind((X, W, 0.5), None).inputs
        assert found == {"hidden_states": X, "weight": W, "eps": 0.5}
        assert refused(call, X, W, 0.5, True) == "argument not in the definition"

    def test_unless_names_and_positions_contradict_each_other(self):
        takes = {"weight": True, "hidden_states": True}
        with pytest.raises(ConfigError, match="'weight' is at position 1"):
            meaning(lambda input, weight: None, takes=takes)

    def test_hints_and_flags_are_passed_to_who_takes_them(self):
        def api(x, enable_pdl=None, return_lse=False):
            pass

        assert meaning(api).bind((X,), None).inputs == {"x": X}
        call = meaning(
            api,
            takes=dict.fromkeys(
                (
                    "x",
                    "enable_pdl",
                    "return_lse",
                ),
                True,
            ),
        )
        assert call.bind((X, True), None).inputs == {
            "x": X,
            "enable_pdl": True,
            "return_lse": False,
        }

    def test_a_buffer_is_no_input(self):
        call = meaning(lambda x, out=None: None, takes=dict.fromkeys(("x",), True))
        bound = call.bind((X, W), None)
        assert (bound.inputs, bound.buffers) == ({"x": X}, {0: W})

    def test_unless_the_solution_takes_it(self):
        call = meaning(
            lambda x, out=None: None,
            takes=dict.fromkeys(
                (
                    "x",
                    "out",
                ),
                True,
            ),
        )
        bound = call.bind((X, W), None)
        assert (bound.inputs, bound.buffers) == ({"x": X, "out": W}, {})

    def test_further_keywords_are_passed_to_who_takes_them(self):
        def api(x, **more):
            pass

        assert meaning(api).bind((X,), {"scale": 2}).inputs == {"x": X, "scale": 2}
        assert (
            refused(meaning(api, takes=dict.fromkeys(("x",), True)), X, scale=2)
            == "argument not in the definition"
        )

    def test_the_object_of_a_method_is_none(self):
        call = meaning(lambda self, x: None, takes=dict.fromkeys(("x",), True))
        assert call.bind(("object", X), None).inputs == {"x": X}


class TestBuffers:
    def test_out_is_the_first_output(self):
        call = meaning(lambda x, weight, out=None: None, definition())
        out = rows()
        bound = call.bind((X, W, out), None)
        assert call.deliver(bound, rows(3)) is out
        assert torch.equal(out, rows(3))

    def test_without_it_the_result_itself_is_returned(self):
        call = meaning(lambda x, weight, out=None: None, definition())
        result = rows(3)
        assert call.deliver(call.bind((X, W), None), result) is result

    def test_out_and_lse(self):
        call = meaning(lambda x, weight, out=None, lse=None: None, definition(outputs=("y", "lse")))
        out, lse = rows(), rows()
        bound = call.bind((X, W), {"out": out, "lse": lse})
        found = call.deliver(bound, (rows(3), rows(4)))
        assert found[0] is out
        assert found[1] is lse
        assert torch.equal(lse, rows(4))

    def test_without_a_definition_lse_is_the_second(self):
        call = meaning(lambda x, out=None, lse=None: None)
        lse = rows()
        found = call.deliver(call.bind((X,), {"lse": lse}), (rows(3), rows(4)))
        assert found[1] is lse
        assert torch.equal(found[0], rows(3))

    def test_out_skips_outputs_that_have_a_place(self):
        # The residual goes back into its input; `out` is for the other output alone.
        known = definition(("x", "residual"), ("sum", "y"), sum="residual")
        call = meaning(lambda x, residual, out=None: None, known)
        out, residual = rows(), rows(7)
        bound = call.bind((X, residual, out), None)
        assert bound.buffers == {0: residual, 1: out}
        assert call.deliver(bound, (rows(3), rows(4))) is out
        assert torch.equal(residual, rows(3))
        assert torch.equal(out, rows(4))

    def test_a_tuple_of_buffers(self):
        call = meaning(lambda x, weight, out=None: None, definition(outputs=("y", "z")))
        buffers = (rows(), rows())
        found = call.deliver(call.bind((X, W, buffers), None), (rows(3), rows(4)))
        assert [each is buffer for each, buffer in zip(found, buffers, strict=True)] == [True] * 2

    def test_more_buffers_than_outputs_are_left_to_the_original(self):
        call = meaning(lambda x, weight, out=None: None, definition())
        assert refused(call, X, W, (rows(), rows())) == "no place for an output"

    def test_a_parameter_named_like_an_output(self):
        call = meaning(lambda x, weight, y=None: None, definition())
        y = rows()
        assert call.deliver(call.bind((X, W, y), None), rows(3)) is y

    @pytest.mark.parametrize("function", [lambda x, weight, y: None, lambda a, b, c: None])
    def test_a_buffer_that_must_be_given_means_that_nothing_is_returned(self, function):
        call = meaning(function, definition())
        y = rows()
        assert call.deliver(call.bind((X, W, y), None), rows(3)) is None
        assert torch.equal(y, rows(3))

    def test_so_it_does_without_a_definition(self):
        call = meaning(lambda x, out: None, takes=dict.fromkeys(("x",), True))
        out = rows()
        assert call.deliver(call.bind((X, out), None), rows(3)) is None
        assert torch.equal(out, rows(3))

    @pytest.mark.parametrize(
        "buffer", [rows().double(), torch.zeros(2, 5), torch.zeros(4), torch.zeros(1, 2, 4)]
    )
    def test_one_that_no_output_of_the_definition_fits_is_left_to_the_original(self, buffer):
        call = meaning(lambda x, weight, out=None: None, definition())
        assert refused(call, X, W, buffer) == "buffer"

    def test_one_that_a_gradient_is_wanted_of_is_left_to_the_original(self):
        call = meaning(lambda x, weight, out=None: None, definition())
        wanted = rows().requires_grad_()
        assert refused(call, X, W, wanted) == "buffer"
        with torch.no_grad():
            assert call.deliver(call.bind((X, W, wanted), None), rows(3)) is wanted

    def test_something_else_than_a_tensor_is_left_to_the_original(self):
        call = meaning(lambda x, weight, out=None: None, definition())
        assert refused(call, X, W, "here") == "no place for an output"

    def test_a_part_of_a_larger_tensor(self):
        whole = torch.zeros(4, 8)
        call = meaning(lambda x, weight, out=None: None, definition())
        call.deliver(call.bind((X, W, whole[1:3, 2:6]), None), rows(3))
        assert whole.sum() == 3 * 8
        assert torch.equal(whole[1:3, 2:6], rows(3))


class TestInPlace:
    KNOWN = definition(("x", "residual", "weight"), ("y", "sum"), y="x", sum="residual")

    def test_outputs_go_back_into_inputs(self):
        def fused(x, residual, weight, eps=1e-6) -> None:
            pass

        call = meaning(fused, self.KNOWN)
        x, residual = rows(1), rows(2)
        assert call.deliver(call.bind((x, residual, W), None), (rows(3), rows(4))) is None
        assert torch.equal(x, rows(3))
        assert torch.equal(residual, rows(4))

    def test_so_they_do_where_the_solution_returns_views_of_its_inputs(self):
        call = meaning(lambda x, residual, weight: None, self.KNOWN)
        x, residual = rows(1), rows(2)
        call.deliver(call.bind((x, residual, W), None), (residual, x))
        assert torch.equal(x, rows(2))
        assert torch.equal(residual, rows(1))

    def test_a_param_may_be_what_the_api_calls_the_input(self):
        known = definition(("x", "weight"), ("y",), x="input", y="input")
        call = meaning(lambda input, weight: None, known)
        x = rows(1)
        assert call.deliver(call.bind((x, W), None), rows(3)) is None
        assert torch.equal(x, rows(3))

    def test_one_that_is_no_input_is_refused(self):
        with pytest.raises(ConfigError, match="written back into 'state', which is no input"):
            meaning(lambda x, weight: None, definition(y="state"))

    def test_a_function_may_return_what_it_worked_on(self):
        def norm_(x, weight) -> torch.Tensor:
            pass

        call = meaning(norm_, definition(y="x"))
        x = rows(1)
        assert call.deliver(call.bind((x, W), None), rows(3)) is x

    def test_others_are_returned(self):
        call = meaning(lambda x, weight: None, definition(outputs=("y", "sum"), sum="x"))
        x = rows(1)
        found = call.deliver(call.bind((x, W), None), (rows(3), rows(4)))
        assert torch.equal(found, rows(3))
        assert torch.equal(x, rows(4))


class TestWhatIsReturned:
    TWO = definition(outputs=("y", "lse"))

    def test_a_flag_decides_about_the_output_of_its_name(self):
        call = meaning(lambda x, weight, return_lse=False: None, self.TWO)
        pair = (rows(3), rows(4))
        assert call.deliver(call.bind((X, W), None), pair) is pair[0]
        assert call.deliver(call.bind((X, W, True), None), pair) == pair

    def test_a_flag_of_another_name_about_the_last(self):
        known = definition(outputs=("y", "logsumexp"))
        call = meaning(lambda x, weight, return_lse=False: None, known)
        assert isinstance(call.deliver(call.bind((X, W), None), (rows(3), rows(4))), torch.Tensor)

    def test_an_output_that_the_definition_lacks_is_left_to_the_original(self):
        call = meaning(lambda x, weight, return_lse=False: None, definition())
        assert torch.equal(call.deliver(call.bind((X, W), None), rows(3)), rows(3))
        assert refused(call, X, W, True) == "more outputs than the definition has"

    def test_without_a_definition_a_flag_is_about_the_second(self):
        call = meaning(lambda x, return_lse=False: None)
        pair = (rows(3), rows(4))
        assert call.deliver(call.bind((X,), None), pair) is pair[0]
        assert call.deliver(call.bind((X,), None), pair[0]) is pair[0]
        assert call.deliver(call.bind((X, True), None), pair) == pair
        with pytest.raises(DataError, match="got 1 outputs, but the call wants 2"):
            call.deliver(call.bind((X, True), None), pair[0])

    @pytest.mark.parametrize(
        "result", [(3, 4), [3, 4], {"y": 3, "lse": 4}, {"lse": 4, "y": 3}], ids=str
    )
    def test_a_solution_may_return_its_outputs_in_anything(self, result):
        def values(each):
            return rows(each)

        made = (
            {name: values(each) for name, each in result.items()}
            if isinstance(result, dict)
            else type(result)(map(values, result))
        )
        call = meaning(lambda x, weight: None, self.TWO)
        first, second = call.deliver(call.bind((X, W), None), made)
        assert (first[0, 0], second[0, 0]) == (3, 4)

    @pytest.mark.parametrize(
        ("annotation", "kind"), [(list, list), (tuple, tuple), (dict, dict), ("list[Tensor]", list)]
    )
    def test_the_api_says_what_they_are_returned_in(self, annotation, kind):
        call = meaning(lambda x, weight: None, self.TWO, returns=annotation)
        found = call.deliver(call.bind((X, W), None), (rows(3), rows(4)))
        assert type(found) is kind
        if kind is dict:
            assert list(found) == ["y", "lse"]

    def test_one_output_of_two(self):
        def norm(x, weight) -> torch.Tensor:
            pass

        call = meaning(norm, self.TWO)
        pair = (rows(3), rows(4))
        assert call.deliver(call.bind((X, W), None), pair) is pair[0]

    def test_more_than_the_definition_has_cannot_be(self):
        with pytest.raises(ConfigError, match="returns 3 outputs, and the definition has 2"):
            meaning(lambda x, weight: None, self.TWO, returns="tuple[Tensor, Tensor, Tensor]")

    @pytest.mark.parametrize("result", [None, (), [1, 2, 3]])
    def test_a_wrong_number_is_an_error(self, result):
        call = meaning(lambda x, weight: None, self.TWO)
        with pytest.raises(DataError, match=r"library\.norm.*'norm_h4'.*got \d outputs, not 2"):
            call.deliver(call.bind((X, W), None), result)

    def test_without_a_definition_the_result_goes_through_as_it_is(self):
        call = meaning(lambda x: None)
        result = {"anything": 3}
        assert call.deliver(call.bind((X,), None), result) is result

    def test_unless_the_api_returns_a_dict_and_there_is_none(self):
        call = meaning(lambda x: None, returns=dict)
        with pytest.raises(DataError, match="got a tuple, but the API returns a dict"):
            call.deliver(call.bind((X,), None), (X, X))

    def test_outputs_that_would_be_lost_are_an_error(self):
        call = meaning(lambda x: None, returns=None)
        assert call.deliver(call.bind((X,), None), None) is None
        with pytest.raises(DataError, match="got 1 outputs for 0 buffers") as caught:
            call.deliver(call.bind((X,), None), rows(3))
        assert "`param`" in caught.value.hint


class TestMismatch:
    @pytest.mark.parametrize(
        ("result", "what"),
        [
            (rows(3, count=3), r"\[3, 4\] of torch.float32 on cpu, but goes into \[2, 4\]"),
            (rows(3).double(), r"\[2, 4\] of torch.float64"),
            (rows(3).to("meta"), "on meta"),
            ("three", "is a str"),
        ],
    )
    def test_api_definition_and_output_are_named(self, result, what):
        call = meaning(lambda x, weight, out=None: None, definition())
        with pytest.raises(DataError, match=what) as caught:
            call.deliver(call.bind((X, W, rows()), None), result)
        text = str(caught.value)
        assert all(part in text for part in ("library.norm", "'norm_h4'", "output 'y'"))

    def test_nothing_is_written_unless_all_fit(self):
        call = meaning(lambda x, weight, out=None: None, definition(outputs=("y", "z")))
        buffers = (rows(), rows())
        with pytest.raises(DataError):
            call.deliver(call.bind((X, W, buffers), None), (rows(3), rows(4, count=5)))
        assert torch.equal(buffers[0], rows())

    def test_a_number_goes_into_a_tensor_without_dimensions(self):
        known = definition().model_dump()
        known["outputs"] = {"y": {"shape": None, "dtype": "float32"}}
        call = meaning(lambda x, weight, out=None: None, Definition.model_validate(known))
        out = torch.zeros(())
        assert call.deliver(call.bind((X, W, out), None), 3.0) is out
        assert out == 3.0

    def test_and_into_nothing_else(self):
        call = meaning(lambda x, weight, out=None: None, definition())
        with pytest.raises(DataError, match="is a float"):
            call.deliver(call.bind((X, W, rows()), None), 3.0)


class TestWriteBack:
    def test_a_result_that_is_its_buffer_is_not_copied(self):
        buffer = rows(3)
        version = buffer._version
        write_back([buffer, buffer[:]], {0: buffer})
        assert buffer._version == version

    def test_views_that_overlap_their_own_buffer(self):
        memory = torch.arange(8.0)
        write_back([memory[:4]], {0: memory[2:6]})
        assert memory.tolist() == [0, 1, 0, 1, 2, 3, 6, 7]

    def test_a_returned_view_of_a_buffer_keeps_its_values(self):
        buffer = rows(1)
        results = [rows(3), buffer.view(-1)]
        write_back(results, {0: buffer})
        assert torch.equal(results[1], torch.ones(8))

    def test_a_transposed_view(self):
        square = torch.arange(4.0).reshape(2, 2)
        write_back([square.T], {0: square})
        assert square.tolist() == [[0, 2], [1, 3]]


class TestUnsigned:
    def test_an_adapter_tells_arguments_apart_and_the_rest_follows(self):
        api = Api("library.Wrapper.run", returns="tuple[Tensor, Tensor]")
        call = unsigned(api, "norm_h4", definition(outputs=("y", "lse")))
        out = rows()
        found = call.deliver(Bound({}, {0: out}, (0, 1)), (rows(3), rows(4)))
        assert found[0] is out
        single = call.deliver(Bound({}, {}, (0,)), (rows(3), rows(4)))
        assert isinstance(single, tuple)

    def test_arguments_cannot_be_told_apart_without_it(self):
        with pytest.raises(UnroutableError):
            unsigned(Api("library.Wrapper.run"), "norm_h4").bind((), None)


def test_signatures_may_be_given_by_hand():
    signature = inspect.Signature([inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)])
    call = convention(Api("library.one", signature), "one", definition(("x",)))
    assert call.bind((X,), None).inputs == {"x": X}
