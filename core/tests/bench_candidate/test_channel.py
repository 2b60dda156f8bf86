import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.channel import candidate_end, judge_end
from flashinfer_bench.bench.transport.deadline import Deadline
from flashinfer_bench.bench.transport.frames import FrameKind
from flashinfer_bench.bench.transport.values import buffer_of, describe, rebuild
from flashinfer_bench.errors import ProtocolError
from flashinfer_bench.tensors import dtype_name

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


@pytest.mark.parametrize("text", ["", "0x", "zero", "1.5.", "0x1p99999", "__import__('os')"])
def test_texts_that_are_no_number(text):
    with pytest.raises(ProtocolError, match="hexadecimal"):
        rebuild(wire.FloatValue(text), None)


class TestBudget:
    def test_a_tensor_beyond_it_comes_without_data(self):
        record, blob = describe(torch.ones(100, 2), budget=799)
        assert blob is None
        assert record == wire.TensorValue("float32", [100, 2], 800, omitted=True)
        got = rebuild(record, None)
        assert (got.device.type, tuple(got.shape), got.dtype) == ("meta", (100, 2), torch.float32)

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
    def receive(self, ends, record, data):
        judge, candidate = ends
        candidate.send(wire.Outputs(1, [record]), Deadline(SOON), [memoryview(data)])
        reply = judge.receive(Deadline(SOON))
        return judge.receive_values(reply.values, Deadline(SOON), budget=10**6)

    @pytest.mark.parametrize("dtype", ["float33", "", "os.system", "__class__", "Tensor", "qint8"])
    def test_an_unknown_dtype(self, ends, dtype):
        with pytest.raises(ProtocolError):
            self.receive(ends, wire.TensorValue(dtype, [8], 8), bytes(8))

    @pytest.mark.parametrize(
        ("dtype", "shape"),
        [("float33", [2]), ("float32", [2**47, 2**47]), ("float32", [2**47] * 9)],
    )
    def test_an_omitted_tensor_that_cannot_exist(self, dtype, shape):
        with pytest.raises(ProtocolError, match="not a tensor"):
            rebuild(wire.TensorValue(dtype, shape, 8, omitted=True), None)

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

    def test_a_message_where_a_blob_is_due(self, ends):
        judge, candidate = ends
        candidate.send(wire.Outputs(1, [wire.TensorValue("int8", [2], 2)]), Deadline(SOON))
        candidate.send(wire.Done(1), Deadline(SOON))
        reply = judge.receive(Deadline(SOON))
        with pytest.raises(ProtocolError, match="kind"):
            judge.receive_values(reply.values, Deadline(SOON))

    def test_a_blob_where_a_message_is_due(self, ends):
        judge, candidate = ends
        candidate.send_frame(FrameKind.BLOB, b"1234", Deadline(SOON))
        with pytest.raises(ProtocolError, match="kind"):
            judge.receive(Deadline(SOON))


def test_a_type_that_says_that_it_is_a_tensors():
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
