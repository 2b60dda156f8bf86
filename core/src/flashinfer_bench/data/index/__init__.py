"""A derived index of the traces of a dataset, so that questions need not read all of them.

Every data file has one `Part`: a few columns for each line, where the line lies in the file, and
what rankings need in digested form. All parts are kept in one file below ``FIB_CACHE_PATH``. It
holds nothing that is not in the dataset; whoever deletes it loses a second.
"""

from flashinfer_bench.data.index.container import index_file
from flashinfer_bench.data.index.part import StaleIndexError
from flashinfer_bench.data.index.trace_index import TraceIndex

__all__ = ["StaleIndexError", "TraceIndex", "index_file"]
