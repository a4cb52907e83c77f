"""Whom the probe waits for: one that lives has the time its driver may need, one that gives no sign of life has not."""

from __future__ import annotations

import pytest

from fairlead.preflight.nodes.patience import DEFAULT, Waiting, limits, patience_of
from fairlead.probe.readers.nvidia import SMI_LIMIT_S
from fairlead.spec import load

FOUR = ("n0", "n1", "n2", "n3")
BEGUN = 100.0


def spec_of(tmp_path, via, text=""):
    file = tmp_path / "cluster.toml"
    pool = '[[pool]]\nname = "a"\nsize = "other"\nnodes = "n[0-3]"\n'
    file.write_text(f'schema = 1\n[access]\nvia = "{via}"\n{text}{pool}')
    return load(file)


class Fleet:
    """Nodes whose turn came together, by when each was reached, last gave a sign of life, and ended."""

    def __init__(self, nodes=FOUR, *, patience=DEFAULT, begun=BEGUN):
        self.waiting = Waiting(patience, frozenset(nodes))
        self.begun = dict.fromkeys(nodes, begun)
        self.alive: dict[str, float] = {}
        self.reached: dict[str, float] = {}
        self.until: dict[str, float] = {}
        self.ends: dict[str, float] = {}

    def well(self, *nodes, reached=0.4, ends=1.0):
        for node in nodes:
            self.reached[node], self.ends[node] = self.begun[node] + reached, self.begun[node] + ends

    def runs(self, node, *, reached=0.4, until=1e9):
        """Its probe does not end; it gives signs of life until then."""
        self.reached[node], self.until[node] = self.begun[node] + reached, self.begun[node] + until

    def after(self, seconds, *, step=0.25, gap=1.0, deaf=()):
        """node -> when it was given up, and why, by so many seconds later."""
        given, now = {}, BEGUN
        while now < BEGUN + seconds:
            now += step
            for begin, end in deaf:
                if begin < now - BEGUN < end:
                    now = BEGUN + end
                    self.waiting.listened(now, end - begin)
            for node, at in self.reached.items():
                last = min(now, self.until.get(node, now))
                if at <= last:
                    self.alive[node] = at + int((last - at) / gap) * gap
            self.waiting.hear(self.alive)
            for node, at in list(self.ends.items()):
                if at <= now:
                    self.waiting.ended(node, at, self.begun)
                    del self.ends[node]
            given |= {node: (now - BEGUN, why) for node, why in self.waiting.give_up(now, self.begun).items()}
        return given


def test_a_node_that_was_frozen_before_is_not_waited_for_longer_than_the_others_explain():
    fleet = Fleet()
    fleet.well("n0", "n1", "n2")
    ((node, (at_s, why)),) = fleet.after(60).items()
    assert (node, "not reached" in why) == ("n3", True)
    assert 6.4 < at_s <= 7.0


def test_through_slurm_a_step_may_be_held_back_for_longer(tmp_path):
    spec = spec_of(tmp_path, "slurm")
    fleet = Fleet(patience=patience_of(spec))
    fleet.well("n0", "n1", "n2")
    ((_, (at_s, _)),) = fleet.after(60).items()
    assert 13.4 < at_s <= 14.0


def test_a_node_that_freezes_while_its_probe_runs_is_known_within_seconds():
    fleet = Fleet()
    fleet.well("n0", "n1", "n2")
    fleet.runs("n3", until=1.6)
    ((node, (at_s, why)),) = fleet.after(60).items()
    assert (node, why.startswith("no sign of life for 5")) == ("n3", True), why
    assert at_s <= 1.6 + 5.5


def test_no_node_that_lives_is_called_hung_while_its_probe_may_still_wait_for_nvidia_smi():
    fleet = Fleet()
    fleet.well("n0", "n1", "n2", ends=0.5)
    fleet.runs("n3")
    fleet.ends["n3"] = BEGUN + SMI_LIMIT_S + 1.0
    assert fleet.after(60) == {}
    assert fleet.waiting.left == frozenset()


def test_one_that_lives_and_never_ends_is_given_up_after_what_others_needed():
    fleet = Fleet()
    fleet.well("n0", "n1", "n2")
    fleet.runs("n3")
    ((_, (at_s, why)),) = fleet.after(60).items()
    assert 14.0 < at_s <= 14.5
    assert "while others answered" in why


def test_on_a_machine_where_signs_of_life_have_gaps_a_gap_is_no_silence():
    fleet = Fleet(nodes=("n0", "n1"))
    fleet.well("n0", ends=30.0)
    fleet.runs("n1")
    fleet.ends["n1"] = BEGUN + 25
    assert fleet.after(60, gap=5.5 / 3 + 0.1) == {}
    late = Fleet()
    late.well("n0", "n1", "n2", ends=20.0)
    late.runs("n3", until=6.0)
    ((_, (at_s, _)),) = late.after(60, gap=2.5).items()
    assert 5.4 + 7.5 < at_s < 14.0, "three times the gap that others came back from"


def test_what_this_side_did_not_listen_to_is_nobodys_silence():
    fleet = Fleet()
    fleet.well("n0", "n1", "n2")
    fleet.runs("n3")
    fleet.ends["n3"] = BEGUN + 30.0
    assert fleet.after(60, deaf=[(2.0, 22.0)]) == {}


def test_behind_a_fan_out_each_nodes_time_begins_with_its_own_turn():
    nodes = [f"n{i}" for i in range(100)]
    fleet = Fleet(nodes=nodes)
    fleet.well(*nodes[:50])
    for node in nodes[50:]:
        fleet.begun[node] = BEGUN + 30.0
    fleet.well(*nodes[50:99])
    ((node, (at_s, _)),) = fleet.after(90).items()
    assert node == "n99"
    assert 36.4 < at_s <= 37.0


def test_before_half_of_the_nodes_are_reached_nobody_is_late_but_by_the_limit():
    fleet = Fleet()
    fleet.well("n0")
    given = fleet.after(70)
    assert {node: round(at_s) for node, (at_s, _) in given.items()} == dict.fromkeys(("n1", "n2", "n3"), 60)


def test_nodes_that_were_refused_say_nothing_of_how_long_the_others_need():
    fleet = Fleet()
    for node in ("n0", "n1"):
        del fleet.begun[node]
        fleet.waiting.ended(node, BEGUN, fleet.begun)
    fleet.well("n2")
    ((node, (at_s, _)),) = fleet.after(60).items()
    assert (node, 6.4 < at_s <= 7.0) == ("n3", True)


def test_where_every_node_was_refused_nobody_is_waited_for():
    fleet = Fleet()
    fleet.begun.clear()
    for node in FOUR:
        fleet.waiting.ended(node, BEGUN, fleet.begun)
    assert fleet.waiting.left == frozenset()
    assert fleet.after(2) == {}


@pytest.mark.parametrize(
    ("answered_s", "num", "want_s"),
    [
        ([], 4, 60),
        ([1.0], 4, 60),
        ([1.0, 1.2], 4, 14.0),
        ([0.1, 0.1, 0.1], 4, 13.1),
        ([9.0, 10.0, 11.0], 4, 30.0),
        ([30.0, 40.0], 4, 60),
    ],
)
def test_the_fleet_sets_the_pace(answered_s, num, want_s):
    assert DEFAULT.after(answered_s, num, 13.0) == pytest.approx(want_s)


def test_the_cluster_file_says_otherwise(tmp_path):
    spec = spec_of(tmp_path, "ssh", "[preflight.limits]\nprobe_silent_s = 20\nprobe_reach_s = 40\n")
    assert (patience_of(spec).probe_silent_s, patience_of(spec).probe_reach_s) == (20, 40)
    listed = {limit.name: limit for limit in limits(spec)}
    assert (listed["probe_silent_s"].value, listed["probe_silent_s"].source) == (20, "the cluster file")
    assert listed["probe_s"].value > SMI_LIMIT_S
