"""Arguments by name, put into the order of the definition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from flashinfer_bench.data import Definition

_MOST = 64


class Arguments:
    """Puts arguments in order, and remembers how for each set of names.

    Parameters
    ----------
    definition : Definition
        Gives names and order.
    """

    def __init__(self, definition: Definition) -> None:
        self._definition = definition
        self._orders: dict[tuple[Any, ...], tuple[str, ...]] = {}

    def by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return all arguments by position: inputs, and outputs after them if any is given.

        Parameters
        ----------
        args : tuple
            The first arguments.
        kwargs : dict
            The others by name.

        Raises
        ------
        DataError
            If one is unknown, given twice, or missing, or there are too many.
        """
        names = (len(args), *kwargs)
        order = self._orders.get(names)
        if order is None:
            order = self._order(args, kwargs)
            if len(self._orders) < _MOST:
                self._orders[names] = order
        return (*args, *map(kwargs.__getitem__, order))

    def _order(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        merged = self._definition.merge_kwargs_to_args(args, kwargs)
        names = [*self._definition.inputs, *self._definition.outputs][: len(merged)]
        return tuple(names[len(args) :])

    def wrong_count(self, given: int) -> NoReturn:
        """Refuse a call with another number of arguments than either convention has."""
        inputs = len(self._definition.inputs)
        total = inputs + len(self._definition.outputs)
        raise ValueError(
            f"{self._definition.name!r} got {given} arguments; a value-returning call takes "
            f"{inputs}, a destination-passing call {total}"
        )
