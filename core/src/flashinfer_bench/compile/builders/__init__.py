"""The builders of installed plugins, by the names of their classes.

``from flashinfer_bench.compile.builders import TritonBuilder`` works where the plugin is installed;
elsewhere it is an ImportError that names what to install. Nothing is imported before it is asked
for.
"""

from flashinfer_bench._lazy import old_names

__all__ = ["PythonBuilder", "TVMFFIBuilder", "TileLangBuilder", "TorchBuilder", "TritonBuilder"]

__getattr__ = old_names(__name__)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
