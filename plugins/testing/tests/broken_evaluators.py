"""Evaluators with one defect each: the conformance kit is checked against them."""

from __future__ import annotations

import random
from dataclasses import replace

from flashinfer_bench.bench.evaluators import Check, DefaultEvaluator
from flashinfer_bench.data import Correctness, EvaluationStatus
from flashinfer_bench.errors import ConfigError

PASSED = Check(EvaluationStatus.PASSED, Correctness(max_relative_error=0, max_absolute_error=0))


class Good(DefaultEvaluator):
    name = "toy"


class Sampling(Good):
    """Asks for three calls, and looks at all."""

    def calls_per_trial(self, config):
        return 3


class TimedPasses(Good):
    """Believes that timed calls are right."""

    def check_timed(self, definition, workload, trial, outputs, config):
        return PASSED


class OnlyMySettings(Good):
    """Refuses what it does not know."""

    def check_settings(self, config):
        if set(config.extra) - {"mine"}:
            raise ConfigError("extra: unknown setting")


class Lenient(Good):
    """Accepts a constant."""

    def check(self, definition, workload, trial, calls, config):
        found = super().check(definition, workload, trial, calls, config)
        tensors = [o for c in calls for o in c if getattr(o, "is_cpu", False)]
        alike = all(bool((t == t.flatten()[0]).all()) and bool(t.any()) for t in tensors)
        if tensors and alike and "INCORRECT_NUM" in found.status.value:
            return PASSED
        return found


class OtherName(Good):
    name = "plaything"


class WantsConfig(Good):
    def __init__(self, config):
        super().__init__()


class Changed(Good):
    """Changes what it says."""

    def check(self, definition, workload, trial, calls, config):
        found = super().check(definition, workload, trial, calls, config)
        return self.changed(found, calls, trial)

    def changed(self, found, calls, trial):
        raise NotImplementedError


class NoCorrectness(Changed):
    def changed(self, found, calls, trial):
        return replace(found, correctness=None) if found.passed else found


class Unstorable(Changed):
    def changed(self, found, calls, trial):
        if not found.passed:
            return found
        extra = {"first": PASSED, "at": iter}
        return replace(found, correctness=found.correctness.model_copy(update={"extra": extra}))


class IgnoresZeros(Changed):
    def changed(self, found, calls, trial):
        if "INCORRECT_NUM" in found.status.value and not any(o.any() for c in calls for o in c):
            return PASSED
        return found


class IgnoresNan(Changed):
    def changed(self, found, calls, trial):
        if "INCORRECT_NUM" in found.status.value and any(o.isnan().any() for c in calls for o in c):
            return PASSED
        return found


class Numerical(Changed):
    """Calls everything that is wrong numerically wrong."""

    def changed(self, found, calls, trial):
        if found.status.value != self.hides:
            return found
        zero = Correctness(max_relative_error=1, max_absolute_error=1)
        return Check(EvaluationStatus.INCORRECT_NUMERICAL, zero, "wrong somehow")


class IgnoresDtype(Numerical):
    hides = "INCORRECT_DTYPE"


class Reshapes(Good):
    """Takes one more dimension for what it stands for."""

    def check(self, definition, workload, trial, calls, config):
        flat = [[o.squeeze(0) if hasattr(o, "squeeze") else o for o in c] for c in calls]
        return super().check(definition, workload, trial, flat, config)


class Truncates(Good):
    """Compares as many outputs as there are."""

    def check(self, definition, workload, trial, calls, config):
        filled = [[*c, *trial.expected[len(c) :]][: len(trial.expected)] for c in calls]
        return super().check(definition, workload, trial, filled, config)


class NeedsTensors(Good):
    def check(self, definition, workload, trial, calls, config):
        if any(o.device.type == "meta" for c in calls for o in c):
            return Check(EvaluationStatus.INCORRECT_SHAPE, None, "not sent")
        return super().check(definition, workload, trial, calls, config)


class LooksAtLast(Sampling):
    def check(self, definition, workload, trial, calls, config):
        return super().check(definition, workload, trial, calls[-1:], config)


class Moody(Changed):
    def changed(self, found, calls, trial):
        if not found.passed:
            return found
        extra = {"seconds": random.random()}
        return replace(found, correctness=found.correctness.model_copy(update={"extra": extra}))


class WritesOutputs(Good):
    def check(self, definition, workload, trial, calls, config):
        found = super().check(definition, workload, trial, calls, config)
        if found.passed:
            calls[0][0].mul_(1 + 1e-6)
        return found


class CombineRaises(Good):
    def combine(self, checks):
        raise IndexError("one is enough")
