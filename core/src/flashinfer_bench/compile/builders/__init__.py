"""The builders of installed plugins, by the names of their classes.

``from flashinfer_bench.compile.builders import TritonBuilder`` works if the plugin is installed;
otherwise it raises an ImportError that names the package to install. Builders are imported on first
use.
"""

from flashinfer_bench._lazy import old_names

__all__ = ["PythonBuilder", "TVMFFIBuilder", "TileLangBuilder", "TorchBuilder", "TritonBuilder"]

__getattr__ = old_names(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
