"""Text that goes into records."""

from __future__ import annotations


def shortened(text: str, limit: int) -> str:
    """Return `text`, with its middle left out if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit} characters left out …\n"
    kept = max(0, limit - len(mark))
    head = kept * 2 // 3
    return text[:head] + mark + text[len(text) - (kept - head) :]
