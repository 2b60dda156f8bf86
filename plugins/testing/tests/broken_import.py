"""A plugin's module that cannot be imported."""

raise RuntimeError("toy is not for sale")
