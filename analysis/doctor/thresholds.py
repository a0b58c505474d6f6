"""When something is a finding. Each figure has its derivation; rules take them from here.

The idea behind all: a segment is worth a finding when it is a material part of what users wait, in more requests than
chance would give, and larger than the measurement can err.
"""

from __future__ import annotations

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

MATERIAL = 0.20
"""A segment matters from this share of a request's TTFT on: removing it then changes the TTFT by more than the noise
between equal requests (on the lab's pair the middle half of equal requests spreads over 10-15 % of the median)."""

MATERIAL_MS = 20.0
"""... and from this many ms on: less than one engine step of a large model, which no setting can buy back."""

TYPICAL = 1 / 3
"""A slow segment is the run's ailment when a third of the requests have it: that shows in the mean and in p75. What
only a burst or a tail has is the story of single requests (`kvlens breakdown --slowest`)."""

AFFECTED = 0.10
"""Other things (leases, telemetry, trace ids) are either right or wrong for a request: a tenth is what a p90 shows."""

FEW = 3
"""... and at least this many, so that one cold start in a short run is no diagnosis."""

FACTOR = 3.0
"""Two groups that should be equal (directions, peers, ranks) differ when their medians are this far apart: medians of
five or more equal transfers over one fabric stay within a factor of 1.5."""

MIN_GROUP = 5
"""Smaller groups have no median worth comparing."""

LARGE_BYTES = 1 << 20
"""Rates are compared on transfers of at least 1 MiB: below it the fixed cost of a transfer (0.1-1 ms) sets the rate."""

LEASE_S, RETENTION_S = 30.0, 480.0
"""vLLM's defaults of kv_lease_duration and decoder_kv_blocks_ttl (s), where the manifest does not say."""

LEASE_USED = 2 / 3
"""A lease that has used this share of its time is near its end: a heartbeat renews for 2/3 of the duration, so a lease
older than that without one lives on what is left."""

FRAGMENTED = 4.0
"""Descriptors are split when a transfer has this many times more of them per byte than the run's best tenth: a cache
whose blocks are in order needs the same number per byte for every transfer."""

CLOCK_NS = 5 * NS_PER_MS
"""Two hosts' clocks contradict the order of events by more than NTP in one datacentre leaves (1-2 ms)."""
