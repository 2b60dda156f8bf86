"""Evaluators: the rules by which outputs are judged."""

from __future__ import annotations

from flashinfer_bench.bench.evaluators.base import Check, Evaluator, Trial
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.resolve import resolve_evaluator

__all__ = ["Check", "DefaultEvaluator", "Evaluator", "Trial", "resolve_evaluator"]
