"""Key builders with one defect each: the conformance kit is checked against them."""

from flashinfer_bench.apply import ApplyKey, AxesOnlyKeyBuilder


class Good(AxesOnlyKeyBuilder):
    """Axes, and the scale."""

    def features(self, args):
        return (("scale", self.read(args)),)

    def read(self, args):
        return float(args[2])

    def build_from_workload(self, workload, root=None):
        feats = (("scale", workload.inputs["scale"].value),)
        return ApplyKey(self.axes_in(workload), feats)


class WantsNothing(Good):
    def __init__(self):
        pass


class ForgetsFeature(AxesOnlyKeyBuilder):
    def features(self, args):
        return (("causal", True),)


class ByIdentity(Good):
    """The key is that of one object."""

    def build_from_args(self, args):
        key = super().build_from_args(args)
        return ApplyKey(key.axes, (*key.feats, ("tensor", id(args[0]))))


class Tuples(Good):
    """Features that JSON does not know."""

    def build_from_args(self, args):
        return ApplyKey(self.axes_of(args), (("shape", (8,)),))

    def build_from_workload(self, workload, root=None):
        return ApplyKey(self.axes_in(workload), (("shape", (8,)),))


class OneAxis(Good):
    def build_from_args(self, args):
        return ApplyKey(self.axes_of(args)[:1])

    def build_from_workload(self, workload, root=None):
        return ApplyKey(self.axes_in(workload)[:1])


class ReadsTensor(Good):
    def features(self, args):
        args[0][0, 0].item()
        return super().features(args)


class Declares(ReadsTensor):
    """Reads, and says so."""

    reads_data = True


class ByPosition(Good):
    def build_from_runtime(self, runtime_kwargs):
        return self.build_from_args(list(runtime_kwargs.values()))


class Pretends(Good):
    """Has a feature that no compiled look-up would see."""

    axes_only = True
