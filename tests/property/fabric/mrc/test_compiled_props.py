"""Plain and compiled runs of the same random events agree in every decision and every word of state."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import FunctionType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairlead.fabric.mrc import law
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.profile import Profile
from support.depth import cases
from support.mrc_trace import Twins, apply, compiled, random_event

PROFILES = [
    Profile.mrc(
        planes=4, evs_per_plane=8, evs_active=4, mpr=128, max_messages=8, max_wimm=3, max_wimm_dest=60, cwnd=90_000
    ),
    Profile.mrc(planes=1, evs_per_plane=256, evs_active=128, mpr=256, trim=False, dynamic_mpr=True, quick_adapt=False),
    Profile.mrc(planes=3, evs_per_plane=2, evs_active=2, ev_min_active=5, mpr=128, cc_rule=at.CC_CONSTANT, retry_exp=3),
    Profile.mrc(planes=2, evs_per_plane=8, evs_active=4, mpr=128, pace_percent=125, pace_burst_ns=2_000),
    *(
        Profile.uec(mpr=128, path_rule=rule, evs_per_plane=16, evs_active=16, ring_size=8, freeze_ns=50_000)
        for rule in (at.PATH_OBLIVIOUS, at.PATH_BITMAP, at.PATH_REPS, at.PATH_MIXED)
    ),
]


@pytest.fixture(scope="module")
def run() -> Callable[..., int]:
    kernel = compiled()
    play(PROFILES[0], 0, 1, kernel)  # compiles
    return kernel


def play(profile: Profile, seed: int, num_events: int, run: Callable[..., int]) -> Twins:
    rng = random.Random(seed)
    twins = Twins(profile, seed)
    now = rng.choice((0, 10**6, 10**15))
    for _ in range(num_events):
        now += rng.choice((0, 100, 3_000, 3_000, 400_000))
        twins.happen(random_event(rng, twins.tx, twins.rx, now), run)
    return twins


@given(index=st.integers(0, len(PROFILES) - 1), seed=st.integers(0, 1 << 62))
@settings(max_examples=cases(150), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_trace(run: Callable[..., int], index: int, seed: int) -> None:
    play(PROFILES[index], seed, 200, run)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(10))
def test_a_hundred_thousand_traces(run: Callable[..., int], block: int) -> None:
    for seed in range(block * 10_000, (block + 1) * 10_000):
        play(PROFILES[seed % len(PROFILES)], seed, 60, run)


def test_every_handler_of_the_law_has_its_events() -> None:
    named = set(apply.__code__.co_names) | {"init_tx", "init_rx"}  # those two make the rows
    handlers = {name for name, value in vars(law).items() if isinstance(value, FunctionType) and name[0] != "_"}
    handlers -= {"requestor_row", "responder_row"}
    handlers -= {"next_unpaced"}  # a part of next_packet, by itself where nothing has a pace
    assert handlers <= named


@pytest.mark.parametrize("index", range(len(PROFILES)))
def test_long_traces_go_everywhere(run: Callable[..., int], index: int) -> None:
    met = [0] * 6
    for seed in range(8):
        twins = play(PROFILES[index], seed, 2_000, run)
        counters = ("num_new", "num_rtx", "num_timeouts", "num_nacks", "done")
        met = [a + getattr(twins.tx, field) for a, field in zip(met, counters, strict=False)]
        met.append(twins.rx.num_packets)
    assert all(met), met
