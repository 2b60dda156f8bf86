from __future__ import annotations

import ctypes
import math
import socket

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.channel import candidate_end, judge_end, pack
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import FrameKind
from flashinfer_bench.bench.transport.values import announce, buffer_of, describe, plain, rebuild
from flashinfer_bench.errors import ProtocolError
from flashinfer_bench.tensors import dtype_name, tensor_from_span

SOON = 10.0
DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.fixture
def ends(sockets):
    judge, candidate = judge_end(sockets[0]), candidate_end(sockets[1])
    yield judge, candidate
    judge.close()
    candidate.close()


def exchange(ends, values, budget=None):
    """Send outputs from the candidate to the judge."""
    judge, candidate = ends
    described = [describe(value) for value in values]
    message = wire.Outputs(1, [record for record, _ in described])
    candidate.send(message, Deadline(SOON), [blob for _, blob in described])
    reply = judge.receive(Deadline(SOON))
    return judge.receive_values(reply.values, Deadline(SOON), budget=budget)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    as_bytes = [t.contiguous().reshape(-1).view(torch.uint8) for t in (left, right)]
    return torch.equal(*as_bytes)


class TestTensors:
    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_every_dtype_bit_by_bit(self, ends, dtype):
        raw = torch.arange(48, dtype=torch.uint8)
        tensor = (raw % 2).bool() if dtype is torch.bool else raw.view(dtype)
        (got,) = exchange(ends, [tensor])
        assert same_bits(got, tensor)

    @pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3, 4), (3, 0, 2), (1,) * 8])
    def test_every_shape(self, ends, shape):
        tensor = torch.rand(shape)
        (got,) = exchange(ends, [tensor])
        assert same_bits(got, tensor)

    def test_views_arrive_as_what_they_show(self, ends):
        base = torch.arange(24.0).reshape(4, 6)
        views = [base.T, base[::2, 1:4], base.expand(3, 4, 6), base.flip(0)]
        for got, view in zip(exchange(ends, views), views, strict=True):
            assert torch.equal(got, view)

    def test_special_numbers(self, ends):
        tensor = torch.tensor([math.nan, math.inf, -math.inf, -0.0, 1e-45])
        (got,) = exchange(ends, [tensor])
        assert same_bits(got, tensor)

    def test_parameters_and_gradients_arrive_plain(self, ends):
        (got,) = exchange(ends, [torch.nn.Parameter(torch.ones(3))])
        assert type(got) is torch.Tensor
        assert not got.requires_grad

    def test_received_memory_is_aligned_as_torch_aligns(self):
        for _ in range(20):
            assert torch.frombuffer(buffer_of(100), dtype=torch.uint8).data_ptr() % 64 == 0


class TestScalars:
    @pytest.mark.parametrize(
        "value", [True, False, 0, -1, 2**63 - 1, -(2**63), 0.1, -0.0, 1e308, math.inf, -math.inf]
    )
    def test_arrive_exactly(self, ends, value):
        (got,) = exchange(ends, [value])
        assert type(got) is type(value)
        assert (got, math.copysign(1, got)) == (value, math.copysign(1, value))

    def test_nan(self, ends):
        (got,) = exchange(ends, [math.nan])
        assert math.isnan(got)

    @given(st.floats(allow_nan=False))
    def test_every_float(self, value):
        record, blob = describe(value)
        assert blob is None
        assert rebuild(record, None) == value

    def test_integers_of_more_than_64_bits_cannot_be_sent(self):
        with pytest.raises(OverflowError):
            describe(2**63)

    @pytest.mark.parametrize("text", ["", "0x", "zero", "1.5.", "0x1p99999", "__import__('os')"])
    def test_texts_that_are_no_number(self, text):
        with pytest.raises(ProtocolError, match="hexadecimal"):
            rebuild(wire.FloatValue(text), None)


class TestNotSent:
    @pytest.mark.parametrize("value", [None, "text", b"bytes", [1], {"a": 1}, object(), 1j])
    def test_other_objects(self, value):
        with pytest.raises(TypeError, match=type(value).__name__):
            describe(value)

    def test_a_type_that_says_that_it_is_a_tensors(self):
        class Equal(type(torch.Tensor)):
            def __eq__(cls, other):
                return True

            def __hash__(cls):
                return hash(torch.Tensor)

        class Lazy(torch.Tensor, metaclass=Equal):
            pass

        assert Lazy == torch.Tensor
        with pytest.raises(TypeError, match="expected a tensor or a number, not Lazy"):
            describe(torch.ones(2).as_subclass(Lazy))

    def test_types_are_those_from_before(self, monkeypatch):
        class Lazy(torch.Tensor):
            pass

        describe(torch.ones(2))
        monkeypatch.setattr(torch, "Tensor", Lazy)
        with pytest.raises(TypeError, match="Lazy"):
            describe(torch.ones(2).as_subclass(Lazy))

    def test_tensor_subclasses(self):
        class Lazy(torch.Tensor):
            pass

        with pytest.raises(TypeError, match="Lazy"):
            describe(torch.ones(2).as_subclass(Lazy))

    def test_sparse_and_meta_tensors(self):
        with pytest.raises(TypeError):
            describe(torch.eye(2).to_sparse())
        with pytest.raises(TypeError):
            describe(torch.empty(2, device="meta"))


class TestBudget:
    def test_a_tensor_beyond_it_comes_without_data(self):
        record, blob = describe(torch.ones(100, 2), budget=799)
        assert blob is None
        assert record == wire.TensorValue("float32", [100, 2], 800, omitted=True)
        got = rebuild(record, None)
        assert (got.device.type, tuple(got.shape), got.dtype) == ("meta", (100, 2), torch.float32)

    def test_a_tensor_within_it_comes_with_data(self):
        record, blob = describe(torch.ones(100, 2), budget=800)
        assert not record.omitted
        assert blob is not None

    def test_an_expanded_giant_is_not_materialised(self):
        giant = torch.ones(1).expand(2**40)
        record, blob = describe(giant, budget=1000)
        assert blob is None
        assert record.shape == [2**40]

    def test_more_than_allowed_is_refused_before_it_is_read(self, ends):
        with pytest.raises(ProtocolError, match="400 bytes"):
            exchange(ends, [torch.ones(50), torch.ones(50)], budget=399)

    def test_an_announcement_of_terabytes_allocates_nothing(self, ends):
        judge, candidate = ends
        records = [wire.TensorValue("float32", [2**45], 2**47)] * 100
        candidate.send(wire.Outputs(1, records), Deadline(SOON))
        reply = judge.receive(Deadline(SOON))
        with pytest.raises(ProtocolError, match="are allowed"):
            judge.receive_values(reply.values, Deadline(SOON), budget=10**6)


class TestLies:
    def receive(self, ends, record, data: bytes):
        judge, candidate = ends
        candidate.send(wire.Outputs(1, [record]), Deadline(SOON), [memoryview(data)])
        reply = judge.receive(Deadline(SOON))
        return judge.receive_values(reply.values, Deadline(SOON), budget=10**6)

    @pytest.mark.parametrize(
        ("shape", "nbytes"), [([3], 8), ([2], 4), ([], 8), ([2, 0], 8), ([2**40, 2**40], 8)]
    )
    def test_a_shape_that_does_not_fit_the_bytes(self, ends, shape, nbytes):
        with pytest.raises(ProtocolError):
            self.receive(ends, wire.TensorValue("float32", shape, nbytes), bytes(nbytes))

    @pytest.mark.parametrize("dtype", ["float33", "", "os.system", "__class__", "Tensor", "qint8"])
    def test_an_unknown_dtype(self, ends, dtype):
        with pytest.raises(ProtocolError):
            self.receive(ends, wire.TensorValue(dtype, [8], 8), bytes(8))

    def test_a_blob_of_another_size(self, ends):
        with pytest.raises(ProtocolError, match="12 bytes came where 8"):
            self.receive(ends, wire.TensorValue("float32", [2], 8), bytes(12))

    @pytest.mark.parametrize(
        ("dtype", "shape"),
        [("float33", [2]), ("float32", [2**47, 2**47]), ("float32", [2**47] * 9)],
    )
    def test_an_omitted_tensor_that_cannot_exist(self, dtype, shape):
        with pytest.raises(ProtocolError, match="not a tensor"):
            rebuild(wire.TensorValue(dtype, shape, 8, omitted=True), None)

    def test_a_message_where_a_blob_is_due(self, ends):
        judge, candidate = ends
        candidate.send(wire.Outputs(1, [wire.TensorValue("int8", [2], 2)]), Deadline(SOON))
        candidate.send(wire.Done(1), Deadline(SOON))
        reply = judge.receive(Deadline(SOON))
        with pytest.raises(ProtocolError, match="kind"):
            judge.receive_values(reply.values, Deadline(SOON))

    def test_a_blob_where_a_message_is_due(self, ends):
        judge, candidate = ends
        candidate._stream.send(FrameKind.BLOB, b"1234", Deadline(SOON))
        with pytest.raises(ProtocolError, match="kind"):
            judge.receive(Deadline(SOON))

    @settings(max_examples=200)
    @given(
        st.sampled_from([dtype_name(dtype) for dtype in DTYPES]),
        st.lists(st.integers(0, 2**47), max_size=5),
        st.integers(0, 64),
    )
    def test_any_announcement_is_a_tensor_or_an_error(self, dtype, shape, nbytes):
        record = wire.TensorValue(dtype, shape, nbytes)
        try:
            got = rebuild(record, buffer_of(nbytes))
        except ProtocolError:
            return
        assert list(got.shape) == shape
        assert got.numel() * got.element_size() == nbytes


def test_requests_travel_the_other_way(ends):
    judge, candidate = ends
    tensor, number = torch.arange(6.0), 3
    described = [describe(value) for value in (tensor, number)]
    request = wire.PutInputs(7, 1, [record for record, _ in described], {"n": 6})
    judge.send(request, Deadline(SOON), [blob for _, blob in described])
    got = candidate.receive(Deadline(SOON))
    assert got == request
    values = candidate.receive_values(got.values, Deadline(SOON))
    assert torch.equal(values[0], tensor)
    assert values[1] == 3


def test_what_is_received_is_not_shared_with_what_was_sent(ends):
    tensor = torch.ones(4)
    (got,) = exchange(ends, [tensor])
    tensor.zero_()
    assert torch.equal(got, torch.ones(4))


class TestPacked:
    """A request in one piece, and a reply that is looked at later: what the judge's clock spans."""

    def test_a_packed_request_arrives_as_any_other(self, ends):
        judge, candidate = ends
        parts = [torch.arange(5), torch.rand(5).half(), torch.empty(0)]
        described = [describe(part) for part in parts]
        request = wire.Fire(9, "cpu", [0, 0], [0, 1], [record for record, _ in described])
        judge.send_packed(pack(request, [blob for _, blob in described]), Deadline(SOON))
        got = candidate.receive(Deadline(SOON))
        assert got == request
        values = candidate.receive_values(got.patches, Deadline(SOON))
        assert all(same_bits(*pair) for pair in zip(values, parts, strict=True))

    @given(st.lists(st.binary(max_size=40), max_size=4))
    def test_packed_is_what_would_be_sent(self, blobs):
        message = wire.Inspect(3)
        left, right = socket.socketpair()
        with left, right:
            judge_end(left).send(message, Deadline(SOON), [memoryview(blob) for blob in blobs])
            sent = pack(message, [memoryview(blob) for blob in blobs])
            assert right.recv(10_000) == sent

    def test_an_answer_can_be_decoded_later(self, ends):
        judge, candidate = ends
        candidate.send(wire.Fired(1, "2", 0.5, [], []), Deadline(SOON))
        payload = judge.receive_undecoded(Deadline(SOON))
        assert judge.decode(payload) == wire.Fired(1, "2", 0.5, [], [])

    def test_rubbish_is_found_when_it_is_decoded(self, ends):
        judge, candidate = ends
        candidate._stream.send(FrameKind.CONTROL, b"{}", Deadline(SOON))
        payload = judge.receive_undecoded(Deadline(SOON))
        with pytest.raises(ProtocolError):
            judge.decode(payload)

    @pytest.mark.parametrize("missing", [1, 13, 40])
    def test_a_request_that_is_cut_off(self, ends, missing):
        judge, candidate = ends
        record, blob = describe(torch.arange(5))
        packed = pack(wire.Fire(1, "cpu", [0], [0], [record, record]), [blob, blob])
        judge.send_packed(packed[:-missing], Deadline(SOON))
        judge.close()
        with pytest.raises((ProtocolError, ConnectionError)):
            candidate.receive_values(candidate.receive(Deadline(SOON)).patches, Deadline(SOON))


class TestPlaces:
    @pytest.mark.parametrize(
        "tensor",
        [torch.arange(24.0).reshape(4, 6).T[1:, ::2], torch.ones(()), torch.ones(1).expand(3, 4)],
    )
    def test_of_a_plain_tensor(self, tensor):
        record, place = announce(tensor)
        assert record.omitted
        assert (record.shape, place.strides) == (list(tensor.shape), list(tensor.stride()))
        memory = ctypes.string_at(place.address, place.span)
        got = tensor_from_span(record.dtype, record.shape, place.strides, memory)
        assert torch.equal(got, tensor)
        assert got.is_contiguous()

    def test_of_one_without_elements(self):
        _, place = announce(torch.empty(3, 0))
        assert place.span == 0

    @pytest.mark.parametrize("value", [3, 0.5, True])
    def test_of_a_number(self, value):
        record, place = announce(value)
        assert place is None
        assert rebuild(record, None) == value

    @pytest.mark.parametrize("tensor", [torch.eye(2).to_sparse(), torch.empty(2, device="meta")])
    def test_of_what_has_no_plain_memory(self, tensor):
        assert announce(tensor)[1] is None

    def test_what_torch_has_put_off_is_done(self):
        waiting = torch.randn(4, dtype=torch.complex64).conj()
        assert waiting.is_conj()
        done = plain(waiting)
        assert not done.is_conj()
        assert torch.equal(done, waiting)
        assert plain("text") == "text"
