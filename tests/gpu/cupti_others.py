"""CUPTI beside other tools, and solutions that get in its way: for `cupti_on_gpu.py`."""

from __future__ import annotations

HEAD = """
import faulthandler, threading, torch
faulthandler.dump_traceback_later(60, exit=True)
from cupti import cupti
from fib_timing_cupti.timer import CuptiTimer
from torch.profiler import ProfilerActivity, profile
x, big = (torch.randn(1 << size, device="cuda:0") for size in (20, 26))
def work(): x.add_(1)
def time_it(timer=None, function=work):
    timer = timer or CuptiTimer()
    for _ in range(3):
        try:
            print("latency", timer.time_call(function, (), device="cuda:0")[0])
        except Exception as error:
            print(type(error).__name__, error)
    print("notes", timer.take_notes())
    return timer
def profiled(function):
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        work(); torch.cuda.synchronize(); function()
    print(p.key_averages())
def hiding(): cupti.activity_disable(10); big.add_(1); cupti.activity_enable(10); work()
def threaded():
    t = threading.Thread(target=work); t.start(); t.join(); work()
"""
OTHERS = {
    "alone": "time_it()",
    "a profiler is running": "profiled(time_it)",
    "a profiler has run": "profiled(work); time_it()",
    "a profiler comes later": "t = time_it(); profiled(work); time_it(t)",
    "two timers": "time_it(); time_it()",
    "recording is switched off": "t = time_it(); cupti.activity_disable(10); time_it(t)",
    "switched off inside": "t = time_it(None, lambda: big.add_(1)); time_it(t, hiding)",
    "a thread uses the device": "time_it(None, threaded)",
}
