"""The version of this distribution; equal in every distribution of the project."""

__version__ = "0.2.0"
