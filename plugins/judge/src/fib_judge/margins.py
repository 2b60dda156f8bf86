"""By how much a candidate's times may exceed the reference's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fib_judge.normals import Normal


@dataclass(frozen=True)
class Margins:
    """By how much a candidate may exceed the reference.

    Attributes
    ----------
    slack_ms : float
        Milliseconds in any case.
    share : float
        Share of the claimed latency.
    spreads : float
        Robust standard deviations of the reference's calls; but no more than their median, however
        much they spread.
    normal_share : float
        Share of the reference's own median.
    most_share : float
        Share of the claimed latency that is the most, beside the slack. The others depend on how
        busy the machine is, and on nothing that a liar claims: whatever they come to, nobody wins
        more than this.
    doubt : float
        How many times as large an excess has to be to prove something.
    """

    slack_ms: float
    share: float
    spreads: float
    normal_share: float
    most_share: float
    doubt: float = 1.0

    def noise_ms(self, claimed_ms: float, normal: Normal) -> float:
        """Return the largest excess, in milliseconds, that proves nothing here."""
        return self.doubt * self._chance_ms(claimed_ms, normal)

    def _chance_ms(self, claimed_ms: float, normal: Normal) -> float:
        return max(
            self.slack_ms,
            self.share * claimed_ms,
            min(self.spreads * normal.spread_ms, normal.median_ms),
            self.normal_share * normal.median_ms,
        )

    def allowed_ms(self, claimed_ms: float, normal: Normal) -> float:
        """Return the largest excess, in milliseconds, with which a claim is believed."""
        most = self.slack_ms + self.most_share * claimed_ms
        return min(self._chance_ms(claimed_ms, normal), most)


HIDDEN = Margins(
    slack_ms=0.05, share=0.1, spreads=3.0, normal_share=0.25, most_share=0.05, doubt=1.5
)
"""For time that is in the calls and not in the samples.

To describe what came out and to wake the judge costs 0.04-0.25 ms, depending on how much of both
processes is still in the caches and on whether cores have gone idle. Two honest solutions differ in
that by up to 0.05 ms. Nobody wins more than a twentieth of what is claimed, and the slack."""

EXCHANGE = Margins(slack_ms=0.025, share=0.1, spreads=3.0, normal_share=0.25, most_share=0.5)
"""For time that is in the exchanges and not in the samples.

To change inputs of some megabytes takes 0.2-0.7 ms, and how fast it is depends on what the solution
has left behind, such as threads that have gone to sleep: honest ones differ by a quarter of it, and
now and then by half, but hardly three times in a row. Nobody wins more than half of what is
claimed: a true latency is at most 1.5 × the claimed one, and the slack. There is no doubt beyond
chance: of a latency that is told as nearly nothing, what would be added is too uncertain."""

HIDDEN_ON_DEVICES = replace(HIDDEN, slack_ms=0.02)
"""The same on devices that work by themselves. The judge spares a core to hear without delay that a
call has been enqueued; after that only the device and a few steps of the host are waited for."""

EXCHANGE_ON_DEVICES = replace(EXCHANGE, slack_ms=1.0, share=1.0, most_share=2.0)
"""The same there. The host takes its time to have the inputs changed, an allocation of memory now
and then included: honest solutions differed by 0.6 ms on a GPU that changed them in 0.1 ms."""

DESCRIBE = replace(HIDDEN, slack_ms=0.1)
"""For time between the end of a device's work and the answer, which the host takes to describe what
came out: honest solutions differ in it by up to 0.1 ms."""

STAGE = Margins(slack_ms=1.0, share=1.0, spreads=5.0, normal_share=0.5, most_share=2.0)
"""For time spent on getting ready.

Memory is allocated, freed, filled and flushed there, which honest processes do at very different
speeds: compiled code and outputs that are handed in came to several milliseconds on a busy machine.
And little is won there: signs or columns and the patches, which change every row of the inputs, are
told only with the call. So this rule is for gross cases: more than a millisecond, more than all of
the claim, and more than the reference's own calls spread."""
