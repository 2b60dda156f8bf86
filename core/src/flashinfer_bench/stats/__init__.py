"""Statistics of timed calls: intervals, summaries, comparisons. Plain floats, no dependencies."""
