"""A solution of a known definition, run through the dispatcher of that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from flashinfer_bench.apply.reconcile import memory_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flashinfer_bench.apply.apis import Bound
    from flashinfer_bench.apply.config import ApplyConfig
    from flashinfer_bench.apply.curated import Candidate
    from flashinfer_bench.apply.dispatch import Dispatcher, Target
    from flashinfer_bench.apply.keys import ApplyKey
    from flashinfer_bench.apply.tally import Tally
    from flashinfer_bench.data import Definition
    from flashinfer_bench.integration.slots import Args, Fallback, Kwargs

MISSED = object()
"""What is returned for a call that was refused."""


def miss(*_args: Any, **_kwargs: Any) -> Any:
    """Is the fallback of the dispatcher: the call goes to the original later."""
    return MISSED


class Guarded:
    """Runs a candidate through the dispatcher of its definition.

    Parameters
    ----------
    api : str
        Name of the API.
    candidate : Candidate
        What is run.
    definition : Definition
        Says what it may be run for.
    config : ApplyConfig
        Of the dispatcher.
    tally : Tally
        Counts what the dispatcher refuses.
    """

    def __init__(
        self,
        api: str,
        candidate: Candidate,
        definition: Definition,
        config: ApplyConfig,
        tally: Tally,
    ) -> None:
        self.definition = definition
        self._label = f"{candidate.name} (for {api})"
        self._candidate = candidate
        self._config = config
        self._tally = tally
        self._target: Optional[Target] = None
        self._dispatchers: dict[Any, Dispatcher] = {}

    def resolve(self, key: Optional[ApplyKey]) -> Target:
        """Return the candidate, built at the first time: it is the one for all keys.

        Raises
        ------
        BuildError
            If it cannot be built.
        """
        if self._target is None:
            self._target = self._build()
        return self._target

    def _build(self) -> Target:
        from flashinfer_bench.apply.dispatch import Target

        function, solution = self._candidate.function, self._candidate.solution
        if function is not None:
            return Target.from_callable(
                function, self.definition, by_keyword=True, solution=self._label
            )
        from flashinfer_bench.compile import default_registry

        assert solution is not None
        runnable = default_registry().build(self.definition, solution)
        return Target.from_runnable(runnable, self.definition, self._label)

    def _dispatcher(self, args: Sequence[Any]) -> Dispatcher:
        """Return the dispatcher for the device of the first tensor."""
        for each in args:
            device = getattr(each, "device", None)
            if device is not None:
                found = self._dispatchers.get(device)
                return found or self._make_dispatcher(device, str(device))
        return self._dispatchers.get(None) or self._make_dispatcher(None, "cpu")

    def _make_dispatcher(self, key: Any, device: str) -> Dispatcher:
        from flashinfer_bench.apply.dispatch import Dispatcher

        made = Dispatcher(
            self.definition,
            self,
            self._config,
            key_builder=None,  # there is one solution for all sizes
            device=device if device.startswith(("cpu", "cuda")) else "cpu",
        )
        if self._dispatchers.setdefault(key, made) is made:
            self._tally.include(made)
        return self._dispatchers[key]

    def take(self, args: Args, kwargs: Kwargs) -> Any:
        """Answer a call with the arguments of the definition."""
        return self.answer(args, kwargs, miss)

    def answer(self, args: Args, kwargs: Kwargs, later: Fallback) -> Any:
        """Answer it; `later` is the fallback of the dispatcher."""
        values = (*args, *kwargs.values()) if kwargs else args
        return self._dispatcher(values).call(args, kwargs, later)

    def run(self, bound: Bound) -> Any:
        """Return the outputs of a call, or that it was refused."""
        args = tuple(bound.inputs.values())
        dispatcher = self._dispatcher(args)
        buffers = self._direct(bound)
        if not buffers:
            return dispatcher.call(args, None, miss)
        # What is refused with these buffers is so without: it is asked, and counted, once.
        missed = dispatcher.call((*args, *buffers), None, miss) is MISSED
        return MISSED if missed else buffers

    def _direct(self, bound: Bound) -> tuple[Any, ...]:
        """Return the buffers of all outputs, if the solution may write straight into them."""
        from flashinfer_bench.apply.dispatch.ordinary import is_plain

        target, given = self._target, bound.buffers
        if target is None or target.native_style != "destination":
            return ()
        if len(given) != len(self.definition.outputs):
            return ()
        buffers = tuple(given[index] for index in range(len(given)))
        memory = [memory_of(buffer) for buffer in buffers]
        apart = len({*memory}) == len(memory)
        used = {memory_of(value) for value in bound.inputs.values()}
        free = apart and used.isdisjoint(memory)
        return buffers if free and all(is_plain(each) for each in buffers) else ()
