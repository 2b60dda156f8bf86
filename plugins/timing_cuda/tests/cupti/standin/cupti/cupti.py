"""The functions, records and errors of cupti-python 13 that matter here, without a device.

`device` takes the place of the GPU and its driver: tests tell it what runs when. Names, values,
arguments and fields are those of the real package.
"""

import enum
import threading


class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    CONCURRENT_KERNEL = 10
    MEMCPY2 = 22


class Result(enum.IntEnum):
    ERROR_INVALID_PARAMETER = 1
    ERROR_INVALID_OPERATION = 7
    ERROR_INVALID_KIND = 21
    ERROR_INSUFFICIENT_PRIVILEGES = 35
    ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39
    ERROR_UNKNOWN = 999


class cuptiError(Exception):
    def __init__(self, status):
        self.status = int(status)
        super().__init__(f"{Result(status).name} ({int(status)})")


class Record:
    """Looks into a buffer, which is freed after the callback."""

    FIELDS = "start end correlation_id device_id context_id stream_id graph_id graph_node_id"

    def __init__(self, kind, **fields):
        object.__setattr__(self, "kind", int(kind))
        object.__setattr__(self, "_fields", fields)

    def __getattr__(self, name):
        if self._fields is None:
            raise MemoryError(f"{name}: read after the buffer was freed")
        if name not in (self.FIELDS + " " + self.MORE).split():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._fields.get(name, 0)

    def free(self):
        object.__setattr__(self, "_fields", None)


class ActivityKernel10(Record):
    MORE = "name completed queued submitted grid_x block_x registers_per_thread is_device_launched"


class ActivityMemcpy6(Record):
    MORE = "bytes copy_kind src_kind dst_kind copy_count is_device_launched"


class ActivityMemcpyPtoP4(Record):
    MORE = "bytes copy_kind src_device_id dst_device_id"


class ActivityMemset4(Record):
    MORE = "bytes value memory_kind"


class ActivityAPI:
    """Of kinds that nobody here asks for."""

    kind = ActivityKind.DRIVER

    def free(self):
        pass


CLASSES = {
    ActivityKind.CONCURRENT_KERNEL: ActivityKernel10,
    ActivityKind.MEMCPY: ActivityMemcpy6,
    ActivityKind.MEMCPY2: ActivityMemcpyPtoP4,
    ActivityKind.MEMSET: ActivityMemset4,
}
RECORD_BYTES = 208


class Device:
    """A GPU and its driver.

    Attributes
    ----------
    refuses : dict
        Status to fail with, by the name of a function of CUPTI.
    incomplete : bool
        Whether records from now on are incomplete until a forced flush.
    last_end : int
        When it has last finished something, recorded or not.
    """

    def __init__(self):
        self.subscriber = self.callbacks = None
        self.enabled, self.buffer, self.held_back = set(), [], []
        self.room = self.order = self.last_end = 0
        self.refuses, self.incomplete = {}, False
        self.log = []

    def called(self, name, *arguments):
        self.log.append((name, *arguments))
        if name in self.refuses:
            status = self.refuses[name]
            raise status if isinstance(status, Exception) else cuptiError(status)

    def run(self, start, end, kind=ActivityKind.CONCURRENT_KERNEL, **fields):
        """Do something from `start` to `end`, and record it if that is asked for."""
        self.order += 1
        self.last_end = max(self.last_end, end)
        if int(kind) not in self.enabled:
            return
        fields = {"correlation_id": self.order, "stream_id": 7, **fields}
        if kind == ActivityKind.CONCURRENT_KERNEL:
            fields.setdefault("name", "kernel")
        record = CLASSES[kind](kind, start=start, end=end, **fields)
        if not self.room:
            size, records = self.callbacks[0]()
            assert size > RECORD_BYTES, size
            self.room = records or size // RECORD_BYTES
        (self.held_back if self.incomplete else self.buffer).append(record)
        self.room -= 1
        if not self.room:  # a thread of CUPTI's hands over what is full
            worker = threading.Thread(target=self.deliver)
            worker.start()
            worker.join()

    def deliver(self):
        full, self.buffer, self.room = [ActivityAPI(), *self.buffer], [], 0
        self.callbacks[1](full)
        for record in full:
            record.free()


device = Device()


def subscribe(callback, userdata):
    device.called("subscribe")
    assert callable(callback)
    if device.subscriber is not None:
        raise cuptiError(Result.ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED)
    device.subscriber = 94420889733120
    return device.subscriber


def unsubscribe(subscriber):
    device.called("unsubscribe")
    if subscriber != device.subscriber:
        raise cuptiError(Result.ERROR_INVALID_PARAMETER)
    device.subscriber = None


def activity_register_callbacks(func_buffer_requested, func_buffer_completed):
    device.called("activity_register_callbacks")
    device.callbacks = func_buffer_requested, func_buffer_completed


def activity_enable(kind):
    device.called("activity_enable", kind)
    if kind not in CLASSES:
        raise cuptiError(Result.ERROR_INVALID_KIND)
    device.enabled.add(int(kind))


def activity_disable(kind):
    device.called("activity_disable", kind)
    device.enabled.discard(int(kind))


def activity_flush_all(flag):
    device.called("activity_flush_all", flag)
    if device.callbacks is None:
        raise cuptiError(Result.ERROR_INVALID_OPERATION)
    if flag:
        device.buffer, device.held_back = device.buffer + device.held_back, []
    if device.buffer:
        device.deliver()
