from __future__ import annotations

import json
import math
from typing import get_args

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


class TestRefused:
    def test_too_many_of_what_was_fired(self):
        refuse({**FIRED, "places": [None] * (wire.MAX_VALUES + 1)})
        refuse({**FIRED, "values": [TENSOR] * (wire.MAX_VALUES + 1)})
        refuse({**FIRED, "notes": ["x"] * (wire.MAX_NOTES + 1)})
        refuse({**INSPECTED, "changed": [0] * (wire.MAX_VALUES + 1)})
        refuse({**INSPECTED, "changed": [-1]})
        refuse({**CONFINED, "applied": ["x"] * 65})

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
