"""The judge's handle to a candidate process: everything that it can be asked for."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from flashinfer_bench.bench.executors.base import (
    CandidateError,
    Compiled,
    Confinement,
    Loaded,
)
from flashinfer_bench.bench.executors.call_timing import CallTiming
from flashinfer_bench.bench.executors.conversation import new_token
from flashinfer_bench.bench.executors.log import printable
from flashinfer_bench.bench.transport import messages as wire
from flashinfer_bench.bench.transport.values import describe
from flashinfer_bench.errors import ProtocolError, RunnerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flashinfer_bench.data import Definition, Solution


class ProcessCandidate(CallTiming):
    """A candidate at the other end of a channel; see `Conversation` for its parameters."""

    def await_ready(self, *, timeout_s: float) -> None:
        """Wait until the process takes requests; close it if it does not come to that.

        Raises
        ------
        RunnerError
            In that case, with what the process has printed.
        """
        try:
            with self._exchange("start", timeout_s) as deadline:
                reply = self._channel.receive(deadline)
                if not isinstance(reply, wire.Ready):
                    raise ProtocolError(f"its first message was {type(reply).__name__}")
        except CandidateError as error:
            raise RunnerError(f"{error}\n{self.log()}".strip()) from error
        finally:
            if not self.alive:
                self.close()

    def confine(
        self, writable: Sequence[str], *, hidden: Sequence[str] = (), timeout_s: float
    ) -> Confinement:
        """Have the process give up what a solution does not need; see `Candidate.confine`."""
        request = wire.Confine(new_token(), "auto", list(writable), list(hidden))
        with self._exchange("confine", timeout_s) as deadline:
            reply = self._ask("confine", request, wire.Confined, deadline)
        missing = {printable(name): printable(why) for name, why in reply.missing.items()}
        return Confinement(tuple(map(printable, reply.applied)), missing)

    def compile(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Compiled:
        """Do the part of the build that other processes can use; see `Candidate.compile`."""
        started = time.perf_counter()
        request = wire.Compile(
            new_token(), definition.model_dump_json(), solution.model_dump_json()
        )
        with self._exchange("compile", timeout_s) as deadline:
            reply = self._ask("compile", request, wire.Compiled, deadline)
        seconds = time.perf_counter() - started
        return Compiled(printable(reply.builder), reply.fresh, seconds)

    def load(self, definition: Definition, solution: Solution, *, timeout_s: float) -> Loaded:
        """Build `solution` for `definition` in the process; see `Candidate.load`."""
        if self._definition is not None:
            raise ValueError(f"process {self.pid} already holds a solution; start another one")
        self._definition = definition
        started = time.perf_counter()
        request = wire.Load(new_token(), definition.model_dump_json(), solution.model_dump_json())
        with self._exchange("load", timeout_s) as deadline:
            self._look_at_memory()
            reply = self._ask("load", request, wire.Loaded, deadline)
        seconds = time.perf_counter() - started
        return Loaded(printable(reply.build_type), reply.destination_passing_style, seconds)

    def put_inputs(
        self,
        slot: int,
        inputs: Sequence[Any],
        axes: Mapping[str, int],
        *,
        timeout_s: float,
    ) -> None:
        """Copy one set of inputs into the process; see `Candidate.put_inputs`."""
        described = [describe(value) for value in inputs]
        records, blobs = [record for record, _ in described], [blob for _, blob in described]
        request = wire.PutInputs(new_token(), slot, records, dict(axes))
        with self._exchange("inputs", timeout_s) as deadline:
            self._ask("inputs", request, wire.Done, deadline, blobs)
        self._axes[slot] = dict(axes)

    def call(self, slot: int, *, timeout_s: float) -> list[Any]:
        """Call the solution once and return its outputs; see `Candidate.call`."""
        budget = self._output_budget(slot)
        request = wire.Call(new_token(), slot, budget)
        with self._exchange("call", timeout_s) as deadline:
            reply = self._ask("call", request, wire.Outputs, deadline)
            return self._channel.receive_values(reply.values, deadline, budget=budget)
