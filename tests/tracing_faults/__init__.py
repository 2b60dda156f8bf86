"""Faults of every kind against tracing: the traced program must not notice one of them."""
