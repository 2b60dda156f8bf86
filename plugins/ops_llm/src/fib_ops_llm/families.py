"""Settings that some op types need, below whatever a user sets."""

from __future__ import annotations

from typing import Any

SETTINGS: dict[str, dict[str, Any]] = {
    # Routing to experts is discontinuous: rounding sends a few tokens another way.
    "moe": {"required_matched_ratio": 0.95},
    # Times that a sampling kernel is called on each input set, and the largest total-variation
    # distance between its frequencies and the distribution asked for.
    "sampling": {"extra": {"sampling_validation_trials": 100, "sampling_tvd_threshold": 0.2}},
}
