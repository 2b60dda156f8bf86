"""Checks of datasets, a module for each subject."""
