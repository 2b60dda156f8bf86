"""Checks of datasets beyond what core checks, a module each."""
