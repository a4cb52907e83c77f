"""The rows: every word has one place, areas do not overlap, rows are whole cache lines."""

from __future__ import annotations

from array import array
from dataclasses import fields

import pytest

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc import state
from fairlead.fabric.mrc.profile import Profile, timers_for
from fairlead.fabric.mrc.rows import (
    AREA_OFFSETS,
    LINE_WORDS,
    PROFILE_AT,
    Endpoint,
    Parameters,
    Requestor,
    Responder,
    Row,
    kinds,
    num_fields,
    place,
    profile_row,
)


def _fields(prefix: str) -> dict[str, int]:
    return {name: value for name, value in vars(at).items() if name.startswith(prefix)}


@pytest.mark.parametrize(
    ("prefix", "first", "end"),
    [
        ("D_", 0, at.NUM_SEND_FIELDS),
        ("S_", 0, at.NUM_SACK_FIELDS),
    ],
)
def test_fields_of_a_block_are_distinct_and_dense(prefix: str, first: int, end: int) -> None:
    assert sorted(_fields(prefix).values()) == list(range(first, end))


@pytest.mark.parametrize("row", [Parameters, Endpoint, Requestor, Responder], ids=lambda row: row.__name__)
def test_every_field_is_read_and_written_at_its_own_place(row: type[Row]) -> None:
    names = kinds(row, "int")
    assert len(set(names)) == len(names) == num_fields(row)
    m = array("q", range(100, 100 + 3 * len(names)))
    seen = row.from_buffer(m, 8 * len(names))
    for n, name in enumerate(names):
        assert (place(row, name), getattr(seen, name)) == (n, 100 + len(names) + n)
        setattr(seen, name, -n)
    assert list(m[len(names) : 2 * len(names)]) == [-n for n in range(len(names))]
    assert (m[len(names) - 1], m[2 * len(names)]) == (99 + len(names), 100 + 2 * len(names))


def test_requestors_and_responders_begin_alike_and_with_their_profile() -> None:
    shared = kinds(Endpoint, "int")
    assert kinds(Requestor, "int")[: len(shared)] == kinds(Responder, "int")[: len(shared)] == shared
    assert place(Endpoint, "profile_at") == PROFILE_AT


def test_a_value_that_people_say_has_the_same_name_in_a_profile_block() -> None:
    said = {field.name for field in fields(Profile)}
    not_said = {"evs_per_plane", "max_messages", "cwnd", "target_delay_ns"}  # other words are derived from these
    assert said - set(kinds(Parameters, "int")) == not_said


def test_bits_that_travel_together_are_distinct() -> None:
    for prefix in ("F_", "DO_", "DID_"):
        values = [v for v in _fields(prefix).values() if v]
        assert all(v.bit_count() == 1 for v in values)
    assert len({*_fields("DO_").values(), *_fields("DID_").values()}) == len(_fields("DO_")) + len(_fields("DID_"))
    assert len(set(_fields("F_").values())) == len(_fields("F_"))


@pytest.mark.parametrize(
    "profile",
    [
        Profile.mrc(),
        Profile.uec(),
        Profile.mrc(mpr=128, planes=1, evs_per_plane=8, evs_active=8, max_messages=1),
        Profile.mrc(mpr=4096, planes=8, evs_per_plane=32),
        Profile.mrc(planes=3, evs_per_plane=4, evs_active=4),
    ],
)
def test_areas_follow_each_other_inside_the_row(profile: Profile) -> None:
    words = profile.words()
    for row, areas, length in (
        (Requestor, profile.tx_areas(), profile.tx_words),
        (Responder, profile.rx_areas(), profile.rx_words),
    ):
        assert set(areas) == set(kinds(row, "Words"))
        end = num_fields(row)
        for name, size in areas.items():
            assert words[AREA_OFFSETS[name]] == end
            end += size
        assert end <= length < end + LINE_WORDS
        assert length % LINE_WORDS == 0


def test_rows_begin_at_cache_lines_and_do_not_overlap() -> None:
    rows = state.allocate([Profile.mrc(), Profile.uec()], 3, 2)
    starts = [rows.tx(i) for i in range(3)] + [rows.rx(i) for i in range(2)]
    assert all((rows.m.ctypes.data + 8 * start) % 64 == 0 for start in starts)
    assert rows.tx(2) + rows.tx_stride == rows.rx(0)
    assert rows.rx(1) + rows.rx_stride == len(rows.m)
    assert len(rows.m) == state.num_words([Profile.mrc(), Profile.uec()], 3, 2)
    assert [profile_row(rows.plain(), p).mtu for p in rows.profiles] == [4096, 4086]


def test_a_full_scale_requestor_takes_a_few_kilobytes() -> None:
    profile = Profile.mrc(mpr=512, planes=8, evs_per_plane=32, max_messages=4)
    assert profile.num_evs == 256
    assert profile.tx_words * 8 <= 6 * 1024
    assert profile.rx_words * 8 <= 1024


@pytest.mark.parametrize(
    "changes",
    [
        {"mpr": 100},
        {"mpr": 33_000},
        {"evs_per_plane": 24},
        {"planes": 9},
        {"evs_active": 33},
        {"max_messages": 3},
        {"ring_size": 6},
        {"mtu": 16_000},
        {"planes": 0},
        {"ev_probe_ok": 16},
        {"ev_probe_ns": 12_000},
        {"rto_ns": 0},
        {"pace_percent": 99},
        {"pace_burst_ns": -1},
        {"network_rtt_ns": 0},
        {"network_rtt_ns": 2_000_000},
        {"network_rtt_ns": 30_000_000, "rate_mbps": 100},
        {"network_rtt_ns": 1_000_000, "ev_probe_ns": 2_000_000},
    ],
)
def test_a_profile_that_no_row_can_hold_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        Profile.mrc(**changes)
    assert caught.value.code == "fabric/bad-profile"


def test_nscc_constants_scale_with_the_network_as_in_the_reference() -> None:
    reference = Profile.mrc(rate_mbps=100_000, network_rtt_ns=12_000).parameters()
    assert reference["target_ns"] == 9_000
    assert reference["fi"] == 5 * 4096
    assert reference["eta"] == 614  # 0.15 x 4096
    assert reference["alpha"] == 4 * 4096 * 3 // 4  # alpha x target, a = 1, b = 3/4
    assert reference["fi_scale"] == 65536 // 4
    assert reference["first_cwnd"] == 225_000
    eight = Profile.mrc(rate_mbps=800_000, network_rtt_ns=12_000).parameters()
    assert eight["fi"] == 8 * reference["fi"]
    assert eight["alpha"] == 8 * reference["alpha"]
    assert Profile.mrc(trim=False).parameters()["target_ns"] == 12_000
    assert Profile.mrc(target_delay_ns=6_000).parameters()["qa_threshold_ns"] == 24_000


def test_timers_are_the_protocols_own_until_the_round_trip_outgrows_them() -> None:
    own = Profile.mrc()
    for rtt in (1, 5_000, 12_000):
        assert all(getattr(own, name) == value for name, value in timers_for(rtt).items())
    far = Profile.mrc(network_rtt_ns=90_000, **timers_for(90_000))
    assert (far.reorder_ns, far.reverse_probe_ns, far.probe_ns) == (90_000, 90_000, 270_000)
    assert (far.probe_retry_ns, far.ev_probe_ns) == (450_000, 720_000)
    assert far.rto_ns == 1024 << 11  # the least of 1.024 us x 2^t that is sixteen round trips


@pytest.mark.parametrize("rtt", [20_000, 200_000, 4_000_000])
def test_a_profile_for_programs_waits_for_schedulers_and_gives_a_silent_peer_up(rtt: int) -> None:
    profile = Profile.software(rtt, planes=4, rate_mbps=10_000)
    assert profile.network_rtt_ns == rtt
    assert min(profile.reorder_ns, profile.probe_ns, profile.reverse_probe_ns) >= max(rtt, 1_000_000)
    assert (profile.planes, profile.trim) == (4, False)
    assert profile.retry_exp < at.RETRY_EXP_INFINITE
    assert Profile.software(50_000, rto_ns=7_000_000).rto_ns == 7_000_000
