import json
from typing import get_args

import pytest
from hypothesis import given
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
LOADED = {"type": "Loaded", "token": 1, "destination_passing_style": True}
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
CONTENTS = [OUTPUTS, FAILED, LOADED, COMPILED, CONFINED, FIRED]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


def reply(content):
    return wire.REPLIES.decode(json.dumps(content).encode())


class TestRefused:
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

    @given(st.sampled_from(CONTENTS), st.data())
    def test_any_json_in_any_field(self, content, data):
        changed = {**content, data.draw(st.sampled_from(list(content))): data.draw(json_values)}
        try:
            decoded = reply(changed)
        except ProtocolError:
            return
        assert isinstance(decoded, get_args(wire.Reply))

    @pytest.mark.parametrize(
        ("content", "field", "value"),
        [
            (FIRED, "places", [None] * (wire.MAX_VALUES + 1)),
            (FIRED, "values", [TENSOR] * (wire.MAX_VALUES + 1)),
            (FIRED, "notes", ["x"] * (wire.MAX_NOTES + 1)),
            (FIRED, "sample_ms", None),  # as JSON has what is not finite
            (CONFINED, "applied", ["x"] * 65),
        ],
    )
    def test_too_many_of_what_was_fired(self, content, field, value):
        reply(content)
        with pytest.raises(ProtocolError):
            reply({**content, field: value})


def test_the_longest_failure_fits_into_a_reply():
    # Every character escaped, as control characters are.
    text = "\x01" * wire.MAX_TEXT
    assert len(wire.encode(wire.Failed(1, "k", text, text))) < wire.MAX_REPLY_BYTES
