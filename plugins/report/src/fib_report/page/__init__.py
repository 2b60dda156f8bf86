"""A self-contained HTML page about recorded results; it makes no network requests.

The page contains the results as compressed columns (`payload`); its scripts, under ``script``,
unpack them and draw the tables and plots. Text from datasets is untrusted: Python and the scripts
insert it as text only.
"""

from fib_report.page.document import PageInfo, render_page

__all__ = ["PageInfo", "render_page"]
