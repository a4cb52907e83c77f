"""Devices: profiles by number, hints, queue pair numbers."""

from __future__ import annotations

import itertools

import pytest

from fairlead.errors import LocalProtocolError
from fairlead.fabric.mrc import layout as at
from fairlead.fabric.mrc.completion import CompletionQueue
from fairlead.fabric.mrc.device import Device
from fairlead.fabric.mrc.profile import Profile
from fairlead.fabric.mrc.verbs import QpState


def make() -> Device:
    return Device(Profile.mrc(), itertools.count(77))


def test_queue_pairs_get_numbers_of_their_own_and_never_the_endpoints() -> None:
    device = make()
    cq = CompletionQueue(8)
    assert [device.create_qp(cq, cq).qp_num for _ in range(3)] == [3, 4, 5]


def test_profiles_are_chosen_by_number() -> None:
    device = make()
    few = device.create_ev_profile(planes=2, evs_per_plane=4, evs_active=4)
    constant = device.create_cc_profile(cc_rule=at.CC_CONSTANT, cwnd=50_000)
    cq = CompletionQueue(8)
    qp = device.create_qp(cq, cq)
    qp.modify(QpState.INIT, ev_profile_id=few, cc_profile_id=constant)
    assert (len(qp.evs), qp.tx.profile.cc_rule, qp.tx.profile.first_cwnd) == (8, at.CC_CONSTANT, 50_000)
    other = device.create_qp(cq, cq)
    other.modify(QpState.INIT, cc_profile_id=constant)
    assert (len(other.evs), other.tx.profile.cc_rule) == (256, at.CC_CONSTANT)
    plain = device.create_qp(cq, cq)
    plain.modify(QpState.INIT)
    assert plain.profile == device.profile
    with pytest.raises(LocalProtocolError, match="profile 9 does not exist"):
        device.create_qp(cq, cq).modify(QpState.INIT, ev_profile_id=9)


def test_a_profile_holds_its_own_fields_and_possible_values_only() -> None:
    device = make()
    with pytest.raises(LocalProtocolError, match="cwnd is no field"):
        device.create_ev_profile(cwnd=1)
    with pytest.raises(LocalProtocolError, match="power of two"):
        device.create_ev_profile(evs_per_plane=3)


def test_a_hint_in_use_is_not_destroyed() -> None:
    device = make()
    hint = device.create_qp_hint(num_qps_per_peer=2)
    cq = CompletionQueue(8)
    qp = device.create_qp(cq, cq)
    qp.modify(QpState.INIT, hint=hint)
    with pytest.raises(LocalProtocolError) as caught:
        device.destroy_qp_hint(hint)
    assert caught.value.code == "fabric/hint-in-use"
    qp.close()
    device.destroy_qp_hint(hint)


def test_what_a_device_can_do() -> None:
    attr = make().query()
    assert attr.max_evs == 256
    assert attr.trim_nack
    assert attr.cc_algorithms[at.CC_NSCC] == "uet-1.0-nscc"
