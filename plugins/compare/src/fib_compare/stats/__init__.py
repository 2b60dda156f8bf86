"""Comparing two sets of samples with a stated rate of error."""
