"""Adapters that are generated from what FlashInfer itself says about its functions.

Since release 0.6.10 a function of FlashInfer may carry a trace template, which tells its inputs,
its outputs, and the name of the definition that a call is of. A `TemplateAdapter` makes a route of
each of them, but for those that an adapter here is written for by hand.

- `names`: from a template and sizes to the name of a definition.
- `registry`: which functions have templates, and where they are found.
- `plan`: what each argument and each output of a function is, by one template.
- `results`: what a function returns of its outputs, and where it puts them.
- `route`: the route of one function.
"""

from fib_adapters_flashinfer.templates.adapter import TemplateAdapter

__all__ = ["TemplateAdapter"]
