"""Likely causes by name, what to do about each, and those that an error message tells."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashinfer_bench.data import EvaluationStatus

if TYPE_CHECKING:
    from flashinfer_bench.data import Evaluation

LIKELY, POSSIBLE = "likely", "possible"


@dataclass(frozen=True)
class Cause:
    """What may have gone wrong.

    Attributes
    ----------
    cause : str
        Its name; see ``docs/reference/feedback.md``.
    confidence : str
        ``likely``, or ``possible``.
    evidence : str
        What was observed.
    suggestion : str
        What to look at next.
    """

    cause: str
    confidence: str
    evidence: str
    suggestion: str


SUGGESTIONS = {
    "nondeterministic": "look for races (missing barriers or atomics, overlapping writes), memory "
    "that is read before it is written, and random numbers; 'fib memcheck' finds the first two",
    "accumulates_between_calls": "set the output or workspace to zero at the start of each call",
    "changes_its_inputs": "write to a buffer of its own instead of an input",
    "stale_output": "compute from the arguments of each call; keep no results between calls, and "
    "check that work is on the current stream",
    "ignored_input": "check that this argument is passed to the kernel and used",
    "uninitialised_output": "check that every element is written, and set outputs to zero before "
    "adding to them",
    "missing_tail": "round the grid up instead of down, and mask loads and stores of the last "
    "block instead of skipping it",
    "reduction_extent": "check start, end and step of the loop over this axis; round the number of "
    "blocks up and mask the last one",
    "padding_in_reduction": "mask the lanes beyond the end of the axis with the neutral element of "
    "the reduction, and divide by the true size",
    "missing_mask": "apply the mask (causal, or by length) before the reduction",
    "wrong_axis": "check over which axis is reduced or normalised, and its stride",
    "wrong_dependence": "check axis, stride, order and mask of what each element is computed from",
    "transposed_operand": "check the strides, or the order of the indices, of this operand",
    "transposed_output": "check the strides, or the order of the indices, of the store",
    "swapped_operands": "check the order of the arguments",
    "missing_scale": "look for a factor that is missing or applied twice, such as 1/sqrt(d) or 1/n",
    "missing_offset": "look for a constant that is missing or added twice",
    "sign_flipped": "check the order of subtractions and the sign of factors",
    "constant_output": "check that the kernel is launched, its mask is not always false, and its "
    "result is stored to the output",
    "identity_output": "check that the result, not an operand, is stored, and that all terms are "
    "added",
    "shifted": "check the start of loops and the offsets of pointers",
    "off_by_one": "check the start of loops and the offsets of pointers",
    "wrong_order": "check how indices are computed from the program or thread number",
    "row_normalisation": "check what is computed once for each row: sum, mean, maximum, scale",
    "column_factor": "check what is applied to each column: weight, bias, scale",
    "saturation": "use a wider type, or subtract the maximum before exp",
    "overflow": "use a wider type for intermediate results, or subtract the maximum before exp",
    "integer_wraparound": "use a wider integer type for the result and for sums",
    "epsilon": "check value and place of the small constant that keeps a denominator from zero",
    "low_precision": "keep operands and sums in a wider type, and round once at the end",
}


# ------------------------------------------------------------------- errors, by their message

_OF_ERRORS: tuple[tuple[str, str, str, str], ...] = (
    # A pattern of the message; name, confidence and suggestion.
    ("illegal memory access|misaligned address|Segmentation fault|SIGSEGV|SIGBUS",
     "invalid_access", LIKELY,
     "run 'fib memcheck' to find the access; check bounds, masks, strides and alignment"),
    ("out of resource: shared memory|shared memory.{0,40}(?:exceed|too (?:much|large)|limit)"
     "|uses too much shared data|Shared memory limit",
     "too_much_shared_memory", LIKELY,
     "use smaller tiles or fewer stages, or ask for more dynamic shared memory"),
    ("too many resources requested for launch|out of resource: (?:threads|registers)",
     "too_many_registers", LIKELY,
     "use fewer threads per block, or limit registers (__launch_bounds__, num_warps)"),
    ("invalid configuration argument|invalid argument.{0,40}launch",
     "invalid_launch", LIKELY,
     "check grid and block: at most 1,024 threads per block, no size 0, no dimension too large"),
    ("CUDA out of memory|OutOfMemoryError|MemoryError|std::bad_alloc|SIGKILL",
     "out_of_memory", POSSIBLE, "use smaller temporaries, and free them between calls"),
    (r"missing \d+ required positional argument|takes [\w ]+ positional arguments?,? but"
     r"|got an unexpected keyword|incompatible function arguments|Mismatched number of arguments"
     r"|expects? \d+ arguments? but",
     "wrong_arguments", LIKELY,
     "take the inputs in the order of the definition; with destination passing the outputs too"),
    (r"No such file or directory.*\.(?:h|cuh|hpp|inl)\b|\.(?:h|cuh|hpp|inl)['\"]?"
     r"(?: file not found|: No such file)",
     "missing_header", LIKELY, "name the dependency in the solution's spec, or drop the #include"),
    (r"undefined (?:symbol|reference)|unresolved external|symbol not found"
     r"|has no (?:attribute|symbol|function)[^:]*$",
     "missing_symbol", POSSIBLE,
     "check the entry point's name, extern \"C\", and the libraries that are linked"),
    ("No module named|ModuleNotFoundError|cannot import name",
     "missing_module", LIKELY, "import only what is installed and named as a dependency"),
    ("no kernel image is available|unsupported gpu architecture|invalid device function",
     "wrong_architecture", LIKELY, "compile for the architecture of this GPU"),
    ("Expected all tensors to be on the same device|is a CPU tensor|Pointer argument.{0,60}CPU",
     "wrong_device", LIKELY, "create temporaries on the device of the inputs"),
    (r"mat1 and mat2 shapes cannot be multiplied|size of tensor a .* must match"
     r"|shapes? .*(?:mismatch|incompatible|not aligned)",
     "wrong_shapes", LIKELY, "compare the shapes of the operands with the definition"),
    ("expected (?:m1 and m2|scalar type|mat1 and mat2).*(?:dtype|type|but found)|must have the same"
     " dtype",
     "mixed_dtypes", LIKELY, "convert the operands to one dtype, and the result to the declared"),
    (r"outputs? instead of \d+|\d+ outputs instead",
     "wrong_number_of_outputs", LIKELY, "return one tensor for each output, in the declared order"),
    ("SyntaxError|IndentationError|expected .* before|expected an? (?:expression|identifier)",
     "syntax_error", LIKELY, "correct the line that the message names"),
)  # fmt: skip


def causes_of_error(evaluation: Evaluation, decisive: str) -> list[Cause]:
    """Return likely causes of an error, by its message.

    Parameters
    ----------
    evaluation : Evaluation
        One that failed otherwise than by wrong values.
    decisive : str
        The decisive line of its log, as `fib_report.causes.reason_of` returns it.

    Returns
    -------
    list of Cause
        Empty if no rule fits.
    """
    status = evaluation.status
    if status in (EvaluationStatus.PASSED, EvaluationStatus.INCORRECT_NUMERICAL):
        return []
    for pattern, name, confidence, suggestion in _OF_ERRORS:
        if re.search(pattern, decisive, re.I):
            return [Cause(name, confidence, decisive, suggestion)]
    if status is EvaluationStatus.TIMEOUT:
        hint = "look for a loop that does not end, a barrier that not all threads reach, or far "
        return [Cause("hang_or_slow", POSSIBLE, decisive, hint + "too much work for one call")]
    if status is EvaluationStatus.INCORRECT_SHAPE:
        hint = "compare the shape with the definition's, for the axes of this workload"
        return [Cause("wrong_output_shape", LIKELY, decisive, hint)]
    if status is EvaluationStatus.INCORRECT_DTYPE:
        hint = "convert the result to the declared dtype before it is returned"
        return [Cause("wrong_output_dtype", LIKELY, decisive, hint)]
    return []
