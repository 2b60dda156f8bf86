"""One self-contained HTML page about recorded results: no request leaves it, nothing is installed.

The results travel in it as compressed columns (`payload`, `logs`); its scripts, under ``script``,
unpack them and make the tables and plots. What strangers wrote gets in as text only, on both sides.
"""

from fib_report.page.document import PageInfo, render_page

__all__ = ["PageInfo", "render_page"]
