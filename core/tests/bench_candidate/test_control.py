from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.transport import control
from flashinfer_bench.errors import ProtocolError, RunnerError

PACKETS = [
    control.ServerReady(12, 1),
    control.SpawnRequest("cuda:1"),
    control.Started(99),
    control.Exited(-11),
]


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: type(packet).__name__)
def test_round_trip(packet):
    assert control.unpack(control.pack(packet), type(packet)) == packet


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: type(packet).__name__)
def test_another_packet_than_expected(packet):
    for other in PACKETS:
        if type(other) is not type(packet):
            with pytest.raises(ProtocolError, match=f"{type(packet).__name__} is due"):
                control.unpack(control.pack(other), type(packet))


def test_a_refusal_tells_its_reason():
    refused = control.pack(control.Refused("no memory for another process"))
    with pytest.raises(RunnerError, match="no memory") as caught:
        control.unpack(refused, control.Started)
    assert not isinstance(caught.value, ProtocolError)
    assert control.unpack(refused, control.Refused).reason == "no memory for another process"


@given(st.binary(max_size=100))
def test_random_bytes(data):
    with pytest.raises(ProtocolError):
        control.unpack(data, control.Started)
