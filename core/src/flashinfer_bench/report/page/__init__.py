"""One self-contained HTML page about recorded results: no request leaves it, nothing is installed.

Every chart is drawn here as SVG; the page's script only sorts, filters, shows values under the
pointer and switches between light and dark. Without the script everything is still there to read.
"""

from flashinfer_bench.report.page.document import PageInfo, render_page

__all__ = ["PageInfo", "render_page"]
