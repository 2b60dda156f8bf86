"""Inputs that nobody has seen, for every timed call.

How an input is made fresh depends on what it is, see `Rule`. The sum of two independent draws with
squares of factors that add up to one has their distribution; secret signs for each element, and a
secret scale for the whole, take from it what a function might keep: sign, order, norm, multiset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Optional

from fib_judge.records import KeyedRandom
from flashinfer_bench.data import RandomInput
from flashinfer_bench.plugins import default_catalog
from flashinfer_bench.tensors import derive_seed, dtype_name, generate_inputs, random_tensor
from flashinfer_bench.tensors.dtypes import FLOAT4
from flashinfer_bench.tensors.generate import is_softmaxed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from flashinfer_bench.data import Definition, Workload

Rule = Literal["mixed", "scaled", "drawn", "kept"]
"""How an input gets fresh values.

``mixed``: random floats; ``s (a p + b q) sigma`` with two secret draws p and q that are shifted
against each other by a secret number of elements, secret signs sigma, and a secret scale s.
``scaled``: recorded floats; each element times a secret factor near 1, its sign changed by chance
if the tensor has both signs. ``drawn``: anything else that is random, drawn anew.
``kept``: scalars, and recorded integers and booleans, whose values have a meaning; also 4-bit
floats, two of which lie in a byte. Probabilities that are drawn are then raised to a secret power,
as those of language models are: where all weigh about the same, any part of them passes for all.
"""

_LEAST_SCALE = 0.6
_EXPONENTS = 1.0, 6.0
_SPREAD = 0.2  # of the logarithm of a factor
_DIRECT = ("torch.float64", "torch.float32", "torch.float16", "torch.bfloat16")


@dataclass(frozen=True)
class Values:
    """Draws the inputs of a workload.

    Attributes
    ----------
    definition, workload
        What is computed, and on what.
    root : Path, optional
        Folder of the dataset.
    given : sequence
        One set of inputs: for the types, and for what is recorded. Tensors on the CPU.
    seed : int
        What all values follow from; a secret.
    device : str
        Where they are made.
    kept : dict
        Draws that are not made anew, by number, with the same as bytes of a slot, see `Ring`, or
        None.
    written : set of int
        Which of the inputs that are tensors the reference overwrites: a solution may, too.
    """

    definition: Definition
    workload: Workload
    root: Optional[Path]
    given: Sequence[Any]
    seed: int
    device: str = "cpu"
    kept: dict[int, tuple[list[Any], Optional[torch.Tensor]]] = field(
        default_factory=dict, compare=False
    )
    written: set[int] = field(default_factory=set, compare=False)

    @cached_property
    def rules(self) -> dict[str, Rule]:
        """How each input gets fresh values, by name."""
        family = default_catalog().family_of(self.definition.op_type)
        made = family is not None and family.spec.inputs is not None
        pairs = zip(self.definition.inputs, self.given, strict=True)
        return {name: self._rule(name, value, made_by_family=made) for name, value in pairs}

    def _rule(self, name: str, value: Any, *, made_by_family: bool) -> Rule:
        if not hasattr(value, "element_size") or not value.numel():
            return "kept"
        if isinstance(self.workload.inputs.get(name), RandomInput):
            plain = str(value.dtype) in _DIRECT and not is_softmaxed(self.definition.op_type, name)
            return "mixed" if plain and not made_by_family else "drawn"
        scalable = value.is_floating_point() and dtype_name(value.dtype) != FLOAT4
        return "scaled" if scalable else "kept"

    @property
    def is_replayable(self) -> bool:
        """Whether every call sees the same values, so that its result can be had from memory."""
        return all(rule == "kept" for rule in self.rules.values())

    @property
    def given_on_device(self) -> list[Any]:
        """The set of inputs that it was made with."""
        return list(self._placed.values())

    def draw(self, number: int) -> list[Any]:
        """Return the inputs of a call; the same number gives the same ones.

        Returns
        -------
        list
            Tensors on the device and Python scalars, in the order of the definition.
        """
        if number in self.kept:
            return self.kept[number][0]
        rng = KeyedRandom(derive_seed(self.seed, number))
        drawn = [name for name, rule in self.rules.items() if rule == "drawn"]
        anew: dict[str, Any] = {}
        if drawn:
            found = generate_inputs(
                *(self.definition, self.workload),
                seed=rng.getrandbits(62),
                root=self.root,
                only=drawn,
            )
            anew = dict(zip(self.definition.inputs, found, strict=True))
        return [self._one(name, rule, anew, rng) for name, rule in self.rules.items()]

    def packed(self, number: int) -> Optional[torch.Tensor]:
        """Return the inputs of a call as bytes of a slot, if they are kept so."""
        return self.kept[number][1] if number in self.kept else None

    def _one(self, name: str, rule: Rule, anew: dict[str, Any], rng: KeyedRandom) -> Any:
        if rule == "drawn":
            made = anew[name].to(self.device)
            peaked = is_softmaxed(self.definition.op_type, name) and made.is_floating_point()
            return _peaked(made, rng.uniform(*_EXPONENTS)) if peaked else made
        if rule == "kept":
            return self._placed[name]
        scale = rng.uniform(_LEAST_SCALE, 1.0)
        like = self._placed[name]
        count = like.numel()
        shifts = [rng.randrange(count) for _ in range(3)]
        if shifts[0] == shifts[1]:  # else p and q were the same
            shifts[1] = (shifts[0] + 1) % count
        first, second, third = (slice(shift, shift + count) for shift in shifts)
        base = self._bases[name]
        if rule == "mixed":
            normal, signs = base
            angle = rng.uniform(0.2, 0.8) * math.pi / 2
            made = normal[first] * (scale * math.cos(angle))
            made.add_(normal[second], alpha=scale * math.sin(angle)).mul_(signs[third])
        else:
            made = _scaled(like, base[0][first], scale, most=1.0 if name in self._shares else None)
        return made.to(like.dtype).view(like.shape)

    @cached_property
    def _placed(self) -> dict[str, Any]:
        pairs = zip(self.definition.inputs, self.given, strict=True)
        return {
            name: value.to(self.device) if hasattr(value, "element_size") else value
            for name, value in pairs
        }

    @cached_property
    def _shares(self) -> frozenset[str]:
        """Recorded inputs from 0 to below 1, such as thresholds of probabilities: they stay so."""
        scaled = {name: self._placed[name] for name, rule in self.rules.items() if rule == "scaled"}
        wide = {name: value.float() for name, value in scaled.items()}
        return frozenset(n for n, one in wide.items() if one.min() >= 0 and one.max() < 1)

    @cached_property
    def _bases(self) -> dict[str, tuple[torch.Tensor, ...]]:
        """What fresh values are made of: each twice in a row, so that a slice of it is a shift."""
        return {
            name: self._base(name, rule)
            for name, rule in self.rules.items()
            if rule in ("mixed", "scaled")
        }

    def _base(self, name: str, rule: Rule) -> tuple[torch.Tensor, ...]:
        import torch

        value = self._placed[name]
        dtype = value.dtype if str(value.dtype) in _DIRECT else torch.float32

        def normal(purpose: str) -> torch.Tensor:
            seed = derive_seed(self.seed, name, purpose)
            return random_tensor([value.numel()], "float32", seed).to(self.device)

        signs = normal("signs").sign_()
        signs[signs == 0] = 1.0
        if rule == "mixed":
            kinds = [normal("values"), signs]
        else:
            factors = (normal("factors") * _SPREAD).exp_()
            wide = value.reshape(-1).to(torch.float32)
            both = bool((wide > 0).any()) and bool((wide < 0).any())
            kinds = [factors * signs if both else factors]
        return tuple(torch.cat([kind, kind]).to(dtype) for kind in kinds)


def _peaked(probabilities: torch.Tensor, exponent: float) -> torch.Tensor:
    """Return distributions whose logits are so many times as far apart."""
    wide = probabilities.float()
    made = (wide / wide.amax(-1, keepdim=True)).pow_(exponent)
    return (made / made.sum(-1, keepdim=True)).to(probabilities.dtype)


def _scaled(
    like: torch.Tensor, factors: torch.Tensor, scale: float, *, most: Optional[float]
) -> torch.Tensor:
    """Return each element times its factor; what is finite stays so, as what a mask is made of."""
    import torch

    flat = like.reshape(-1).to(factors.dtype)
    made = (flat * factors).mul_(scale)
    limits = torch.finfo(like.dtype)
    high = limits.max if most is None else most
    return torch.where(flat.isfinite(), made.clamp(limits.min, high), made)
