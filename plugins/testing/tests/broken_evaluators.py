"""Evaluators with one defect each: the conformance kit is checked against them."""

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


class WantsConfig(Good):
    def __init__(self, config):
        super().__init__()


class Unstorable(Good):
    def check(self, definition, workload, trial, calls, config):
        found = super().check(definition, workload, trial, calls, config)
        if not found.passed:
            return found
        extra = {"first": PASSED, "at": iter}
        return replace(found, correctness=found.correctness.model_copy(update={"extra": extra}))


class Blind(Sampling):
    """Finds nothing wrong."""

    def check(self, definition, workload, trial, calls, config):
        found = super().check(definition, workload, trial, calls, config)
        return found if found.passed else PASSED


class Careless(Good):
    """Finds what is wrong; whatever else can be wrong is wrong."""

    name = "plaything"

    def check(self, definition, workload, trial, calls, config):
        found = super().check(definition, workload, trial, calls, config)
        if not found.passed:
            return found
        calls[0][0].mul_(1 + 1e-6)
        extra = {"seconds": random.random()}
        return replace(found, correctness=found.correctness.model_copy(update={"extra": extra}))

    def check_timed(self, definition, workload, trial, outputs, config):
        return PASSED

    def check_settings(self, config):
        if set(config.extra) - {"mine"}:
            raise ConfigError("extra: unknown setting")

    def combine(self, checks):
        raise IndexError("one is enough")
