"""A library to be patched."""


def scale(x, factor=2.0, *, out=None):
    """Multiply."""
    return x * factor


class Wrapper:
    """Plans, then runs."""

    def plan(self, size):
        """Remember the size."""
        self.size = size

    def run(self, x, *, out=None):
        """Multiply by the size."""
        return x * self.size
