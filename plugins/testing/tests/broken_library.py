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


def activate(x, mode="none", *, out=None, flag=False):
    """Double positive numbers and others, too, unless the mode says otherwise."""
    result = x.relu() * 2 if mode == "relu" else x * 2
    if out is not None:
        result = out.copy_(result)
    return (result, len(x)) if flag else result


def add_into(x, *, residual):
    """Add in place, and return None."""
    residual += x
