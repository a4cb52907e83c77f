"""What the agents of the pair phase reckon by themselves."""

from __future__ import annotations

import pytest

from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.pairs.onnode.wire import rate_of

MB = 1_000_000


# ---- rates -----------------------------------------------------------------------------------------------------------


KIB = 1 << 10
SAVED, WINDOW = DEFAULT.skip_bytes, DEFAULT.window_bytes


def shaped(rate_bps, num_bytes, *, size=8888, pauses=(), bucket=32 * KIB, queue=24):
    """Arrivals behind a token bucket: the sender offers `queue` packets at once, and is away before those in `pauses`.

    `pauses`: number of the packet before which it is away -> how long, ns.
    """
    per_ns = rate_bps / 8e9
    at, tokens, since, offered = 0.0, float(bucket), 0.0, 0.0
    out = []
    for i in range(num_bytes // size):
        if i in pauses:
            offered = at + pauses[i]
        at = max(at, offered) + 15_000  # a packet's time on the wire
        tokens = min(bucket, tokens + (at - since) * per_ns)
        if tokens < size:
            at += (size - tokens) / per_ns
            tokens = size
        tokens, since = tokens - size, at
        out.append((round(at), size))
    return out


def measured(arrivals):
    return rate_of(arrivals, SAVED, WINDOW)[0]


@pytest.mark.parametrize("rate_bps", [5e6, 100e6, 250e6, 1e9])
def test_the_bucket_of_a_shaper_is_not_counted_in(rate_bps):
    assert measured(shaped(rate_bps, MB)) == pytest.approx(rate_bps, rel=0.03)


@pytest.mark.parametrize("bucket", [0, 9_000, 32 * KIB, 60 * KIB])
def test_whatever_the_size_of_the_bucket(bucket):
    assert measured(shaped(250e6, MB, bucket=max(bucket, 8888))) == pytest.approx(250e6, rel=0.03)


@pytest.mark.parametrize("away_ns", [300_000, 1_000_000, 2_000_000, 20_000_000])
def test_what_is_saved_up_while_the_sender_is_away_is_not_counted_in_either(away_ns):
    found = measured(shaped(250e6, MB, pauses=dict.fromkeys((24, 48, 72, 96), away_ns)))
    assert 0.9 * 250e6 < found < 1.03 * 250e6


def test_a_sender_that_is_away_at_every_turn_still_shows_most_of_the_rate():
    """Batches of sixteen packets, each less than a whole stretch."""
    found = measured(shaped(250e6, MB, pauses=dict.fromkeys(range(16, 112, 16), 1_000_000)))
    assert 0.8 * 250e6 < found < 1.03 * 250e6


def test_where_packets_are_stamped_in_batches_the_rate_is_of_the_right_size():
    """A fast NIC hands packets over every 20 us, many at a time: the rate is not that of the hand-over."""
    steady = [(i * 2_880, 9_000) for i in range(115)]  # 25 Gb/s
    batched = [(-(-at // 20_000) * 20_000 + i % 8 * 100, size) for i, (at, size) in enumerate(steady)]
    assert 0.6 * 25e9 < measured(batched) < 1.7 * 25e9


def test_too_little_for_a_stretch_is_timed_whole_and_nothing_is_no_rate():
    assert measured(shaped(12e6, 140_000)) == pytest.approx(12e6, rel=0.05)
    assert rate_of([], SAVED, WINDOW) == (0, 0)
    assert rate_of([(5, 9000)], SAVED, WINDOW) == (0, 9000)
    assert rate_of([(5, 9000)] * 100, SAVED, WINDOW) == (0, 900_000)
