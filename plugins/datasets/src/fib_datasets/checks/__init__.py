"""Checks of datasets beyond those of core, one module each."""
