from __future__ import annotations

import json
import math
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.errors import ProtocolError

TENSOR = {
    "type": "TensorValue",
    "dtype": "float32",
    "shape": [2, 3],
    "nbytes": 24,
    "omitted": False,
}
OUTPUTS = {"type": "Outputs", "token": 1, "values": [TENSOR]}
FAILED = {"type": "Failed", "token": 1, "kind": "ValueError", "message": "m", "traceback": "t"}
LOADED = {"type": "Loaded", "token": 1, "build_type": "x", "destination_passing_style": True}
COMPILED = {"type": "Compiled", "token": 1, "builder": "x", "fresh": True}
CONFINED = {"type": "Confined", "token": 1, "applied": ["x"], "missing": {"y": "why"}}
PLACE = {"type": "Place", "address": 4096, "span": 24, "strides": [3, 1]}
FIRED = {
    "type": "Fired",
    "token": 1,
    "timer_version": "2",
    "sample_ms": 0.5,
    "values": [{**TENSOR, "omitted": True}, {"type": "IntValue", "value": 3}],
    "places": [PLACE, None],
}
INSPECTED = {"type": "Inspected", "token": 1, "changed": [0, 2]}
CHANGED = {"type": "Changed", "token": 1}
ENQUEUED = {"type": "Enqueued", "token": 1}
FINISHED = {"type": "Finished", "token": 1}
STEPS = [CHANGED, ENQUEUED, FINISHED, FIRED]
CONTENTS = [OUTPUTS, FAILED, LOADED, COMPILED, CONFINED, *STEPS, INSPECTED]
STAGE = {
    "type": "Stage",
    "token": 1,
    "slot": 0,
    "shifts": [64, 0],
    "output_shift": 256,
}
FIRE = {
    "type": "Fire",
    "token": 1,
    "timer": "cpu",
    "mixes": [7, 0],
    "inputs": [0],
    "patches": [TENSOR, TENSOR],
}
CONFINE = {"type": "Confine", "token": 1, "level": "auto", "writable": ["/somewhere"]}
COLLECT = {"type": "Collect", "token": 1, "budget": 1000}
PUT = {"type": "PutInputs", "token": 1, "slot": 0, "values": [TENSOR], "axes": {"n": 1}}
ORDERS = [STAGE, FIRE, CONFINE, COLLECT, PUT]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


def reply(content: object) -> wire.Message:
    return wire.REPLIES.decode(json.dumps(content).encode())


def refuse(content: object) -> None:
    with pytest.raises(ProtocolError, match="not allowed"):
        reply(content)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
values = st.one_of(
    st.builds(wire.BoolValue, st.booleans()),
    st.builds(wire.IntValue, st.integers(-(2**63), 2**63 - 1)),
    st.builds(wire.FloatValue, st.floats().map(float.hex)),
    st.builds(
        wire.TensorValue,
        names,
        st.lists(st.integers(0, 2**40), max_size=6),
        st.integers(0, 2**47),
        st.booleans(),
    ),
)
tokens = st.integers(0, 2**53 - 1)
slots = st.integers(0, 2**31 - 1)
extents = st.lists(st.integers(0, 2**47), max_size=5)
sizes = st.integers(0, 2**47)
places = st.builds(
    wire.Place, st.integers(0, 2**63 - 1), sizes, st.lists(st.integers(0, 2**47), max_size=6)
)
requests = st.one_of(
    st.builds(wire.Load, tokens, names, names),
    st.builds(wire.Compile, tokens, names, names),
    st.builds(
        wire.PutInputs,
        tokens,
        slots,
        st.lists(values, max_size=5),
        st.dictionaries(names, st.integers(0, 2**40), max_size=4),
        st.lists(st.sampled_from(get_args(wire.Way)), max_size=5),
    ),
    st.builds(wire.Confine, tokens, st.just("auto"), st.lists(names, max_size=3)),
    st.builds(wire.Stage, tokens, slots, extents, sizes),
    st.builds(
        wire.Fire, tokens, names, extents, st.lists(slots, max_size=4), st.lists(values, max_size=8)
    ),
    st.builds(wire.Collect, tokens, sizes),
    st.builds(wire.Inspect, tokens),
    st.builds(wire.Call, tokens, slots, st.integers(0, 2**47)),
)
replies = st.one_of(
    st.builds(wire.Ready, tokens),
    st.builds(wire.Done, tokens),
    st.builds(wire.Changed, tokens),
    st.builds(wire.Enqueued, tokens),
    st.builds(wire.Finished, tokens),
    st.builds(wire.Loaded, tokens, names, st.booleans()),
    st.builds(wire.Compiled, tokens, names, st.booleans()),
    st.builds(wire.Outputs, tokens, st.lists(values, max_size=5)),
    st.builds(
        wire.Failed,
        tokens,
        names,
        names,
        names,
        st.booleans(),
        st.sampled_from(get_args(wire.FailureClass)),
        names,
    ),
    st.builds(
        wire.Confined,
        tokens,
        st.lists(names, max_size=4),
        st.dictionaries(names, names, max_size=4),
    ),
    st.builds(
        wire.Fired,
        tokens,
        names,
        st.floats(0, 1e9),
        st.lists(values, max_size=5),
        st.lists(st.none() | places, max_size=5),
        st.lists(names, max_size=3),
    ),
    st.builds(wire.Inspected, tokens, st.lists(slots, max_size=5)),
)


class TestRoundTrip:
    @given(requests)
    def test_requests(self, message):
        assert wire.REQUESTS.decode(wire.encode(message)) == message

    @given(replies)
    def test_replies(self, message):
        assert wire.REPLIES.decode(wire.encode(message)) == message

    def test_the_strategies_above_know_every_message(self):
        assert len(get_args(wire.Request)) == 9
        assert len(get_args(wire.Reply)) == 12

    @pytest.mark.parametrize("content", CONTENTS)
    def test_the_json_is_what_the_specification_says(self, content):
        written = json.loads(wire.encode(reply(content)))
        assert {**written, **content} == written


def order(content: object) -> wire.Message:
    return wire.REQUESTS.decode(json.dumps(content).encode())


class TestRefusedRequests:
    """The judge is trusted, so these would be its own mistakes."""

    @pytest.mark.parametrize("content", ORDERS)
    def test_they_are_written_as_the_specification_says(self, content):
        written = json.loads(wire.encode(order(content)))
        assert {**written, **content} == written

    @pytest.mark.parametrize("content", ORDERS)
    def test_each_missing_or_wrong_field(self, content):
        for field in content:
            for changed in (
                {key: value for key, value in content.items() if key != field},
                {**content, field: {"surprise": "x"}},
                {**content, field: None},
            ):
                with pytest.raises(ProtocolError):
                    order(changed)

    @pytest.mark.parametrize(
        "content",
        [
            {**STAGE, "shifts": [-1]},
            {**STAGE, "shifts": [0] * (wire.MAX_VALUES + 1)},
            {**STAGE, "output_shift": 2**48},
            {**FIRE, "mixes": [2**48]},
            {**FIRE, "mixes": [0] * (wire.MAX_VALUES + 1)},
            {**FIRE, "inputs": [-1]},
            {**FIRE, "patches": [TENSOR] * (2 * wire.MAX_VALUES + 1)},
            {**CONFINE, "level": "off"},
            {**CONFINE, "writable": ["x" * 5000]},
            {**COLLECT, "budget": -1},
            {**PUT, "ways": ["teleport"]},
            {**PUT, "ways": ["move"] * (wire.MAX_VALUES + 1)},
        ],
    )
    def test_out_of_bounds(self, content):
        with pytest.raises(ProtocolError):
            order(content)

    def test_old_judges_say_nothing_about_ways(self):
        assert order(PUT).ways == []


class TestRefused:
    @pytest.mark.parametrize(
        "change",
        [
            {"address": -1},
            {"address": 2**63},
            {"address": 1.5},
            {"address": "0x1000"},
            {"span": -1},
            {"span": 2**48},
            {"strides": [-1]},
            {"strides": [2**48]},
            {"strides": [1] * 65},
            {"strides": 1},
        ],
    )
    def test_places_out_of_bounds(self, change):
        refuse({**FIRED, "places": [{**PLACE, **change}]})

    @pytest.mark.parametrize("sample", [-1e-9, 1e12, "1", None, True])
    def test_a_latency_out_of_bounds(self, sample):
        refuse({**FIRED, "sample_ms": sample})

    def test_too_many_of_what_was_fired(self):
        refuse({**FIRED, "places": [None] * (wire.MAX_VALUES + 1)})
        refuse({**FIRED, "values": [TENSOR] * (wire.MAX_VALUES + 1)})
        refuse({**FIRED, "notes": ["x"] * (wire.MAX_NOTES + 1)})
        refuse({**INSPECTED, "changed": [0] * (wire.MAX_VALUES + 1)})
        refuse({**INSPECTED, "changed": [-1]})
        refuse({**CONFINED, "applied": ["x"] * 65})

    @pytest.mark.parametrize("content", CONTENTS)
    def test_each_missing_field(self, content):
        for field in content:
            refuse({key: value for key, value in content.items() if key != field})

    @pytest.mark.parametrize("content", CONTENTS)
    def test_each_field_of_a_wrong_type(self, content):
        for field in content:
            refuse({**content, field: {"surprise": 1}})
            refuse({**content, field: None})

    def test_a_failure_about_something_else(self):
        refuse({**FAILED, "about": "the weather"})

    def test_an_unknown_field(self):
        refuse({**FAILED, "status": "PASSED"})
        refuse({**OUTPUTS, "values": [{**TENSOR, "data": "AAAA"}]})

    def test_an_unknown_message(self):
        refuse({**FAILED, "type": "Passed"})
        refuse({"type": "builtins.eval", "token": 1})

    def test_a_message_of_the_other_direction(self):
        refuse({"type": "Call", "token": 1, "slot": 0, "budget": 1})
        with pytest.raises(ProtocolError):
            wire.REQUESTS.decode(json.dumps(FAILED).encode())

    @pytest.mark.parametrize("token", [-1, 2**53, 2**200, 1.5, "1", True, None])
    def test_tokens_out_of_bounds(self, token):
        refuse({**FAILED, "token": token})

    @pytest.mark.parametrize(
        "change",
        [
            {"shape": [-1]},
            {"shape": [1] * 65},
            {"shape": [2**48]},
            {"shape": [1.5]},
            {"nbytes": -1},
            {"nbytes": 2**48},
            {"dtype": "x" * 257},
            {"omitted": "no"},
            {"type": "ndarray"},
        ],
    )
    def test_tensors_out_of_bounds(self, change):
        refuse({**OUTPUTS, "values": [{**TENSOR, **change}]})

    @pytest.mark.parametrize("sample", [-0.001, 1e12, "1", None, [1.0]])
    def test_samples_out_of_bounds(self, sample):
        refuse({**FIRED, "sample_ms": sample})

    @pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "nan"])
    def test_samples_that_are_no_numbers(self, text):
        with pytest.raises(ProtocolError):
            wire.REPLIES.decode(json.dumps(FIRED).replace("0.5", text).encode())

    def test_too_much_of_everything(self):
        refuse({**OUTPUTS, "values": [TENSOR] * (wire.MAX_VALUES + 1)})
        refuse({**FIRED, "notes": ["note"] * 17})
        refuse({**FAILED, "traceback": "x" * (wire.MAX_TEXT + 1)})

    def test_integers_of_more_than_64_bits(self):
        refuse({**OUTPUTS, "values": [{"type": "IntValue", "value": 2**63}]})
        refuse({**OUTPUTS, "values": [{"type": "IntValue", "value": 10**400}]})

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"null",
            b"[]",
            b"{",
            b'{"type":"Done","token":1}x',
            b'{"type":"Done","token":1,"token":',
            b'{"type":"Done\xff","token":1}',
            b"\x80\x04\x95\x0b\x00\x00\x00.",
            b'{"type":"Outputs","token":1,"values":' + b"[" * 100_000,
        ],
    )
    def test_what_is_no_message(self, data):
        with pytest.raises(ProtocolError):
            wire.REPLIES.decode(data)

    @given(st.binary(max_size=300))
    def test_random_bytes(self, data):
        with pytest.raises(ProtocolError):
            wire.REPLIES.decode(data)

    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(replies, st.data())
    def test_a_message_with_a_byte_changed(self, message, data):
        raw = bytearray(wire.encode(message))
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
        try:
            decoded = wire.REPLIES.decode(raw)
        except ProtocolError:
            return
        assert isinstance(decoded, get_args(wire.Reply))

    @given(st.sampled_from(CONTENTS), st.data())
    def test_any_json_in_any_field(self, content, data):
        changed = {**content, data.draw(st.sampled_from(list(content))): data.draw(json_values)}
        try:
            decoded = reply(changed)
        except ProtocolError:
            return
        assert isinstance(decoded, get_args(wire.Reply))


def test_the_longest_failure_fits_into_a_reply():
    # Every character escaped, as control characters are.
    text = "\x01" * wire.MAX_TEXT
    assert len(wire.encode(wire.Failed(1, "k", text, text))) < wire.MAX_REPLY_BYTES


def test_not_finite_samples_cannot_be_sent_as_numbers():
    written = wire.encode(wire.Fired(1, "1", math.nan, [], []))
    with pytest.raises(ProtocolError):
        wire.REPLIES.decode(written)


def test_there_is_no_type_but_records_on_the_wire():
    """No custom decoding hook, so nothing a candidate sends can name code."""
    for codec in (wire.REQUESTS, wire.REPLIES):
        assert codec._decoder.dec_hook is None
    assert issubclass(wire.Record, msgspec.Struct)
