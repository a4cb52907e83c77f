"""The numbers of the pair phase: data with sources, which a cluster file may change."""

from __future__ import annotations

import pytest

from fairlead.errors import SpecError
from fairlead.preflight.pairs.limits import DEFAULT, limits, limits_of, table
from fairlead.preflight.ranks.wanted import wanted_of
from fairlead.spec.loader import read

HEAD = 'schema = 1\n[access]\nvia = "ssh"\n[[pool]]\nname = "p"\nsize = "other"\nnodes = "n[0-3]"\n'


def spec(tmp_path, text=""):
    file = tmp_path / "cluster.toml"
    file.write_text(HEAD + text)
    return read(file, environ={}).spec


def test_every_number_has_a_unit_or_is_a_count_and_says_who_says_so():
    assert all(row.source and row.what for row in table().values())
    assert {name for name, row in table().items() if row.judges} >= {"slow_ratio", "late_ratio", "loss", "clock_ns"}


def test_the_cluster_file_changes_what_it_names_and_nothing_else(tmp_path):
    ours = limits_of(spec(tmp_path, "[preflight.limits]\nslow_ratio = 0.4\nsmall = 300\n"))
    assert (ours.slow_ratio, ours.small) == (0.4, 300)
    assert ours.late_ratio == DEFAULT.late_ratio
    assert limits_of(spec(tmp_path)) == DEFAULT


def test_they_are_listed_with_what_holds_here(tmp_path):
    listed = {x.name: x for x in limits(spec(tmp_path, "[preflight.limits]\nslow_ratio = 0.4\n"))}
    assert (listed["slow_ratio"].value, listed["slow_ratio"].source) == (0.4, "the cluster file")
    assert listed["loss"].source == table()["loss"].source
    assert listed["loss"].key == "preflight.limits.loss"
    assert "pings" not in listed, "it judges nothing"


def test_numbers_of_ranks_stand_in_the_same_table(tmp_path):
    ours = spec(tmp_path, "[preflight.limits]\nslow_ratio = 0.4\nstraggler_ratio = 3\n")
    assert (limits_of(ours).slow_ratio, wanted_of(ours, ["n0", "n1"], []).numbers["straggler_ratio"]) == (0.4, 3)


@pytest.mark.parametrize(
    "line",
    [
        "slow_rato = 0.4",
        "small = 0.5",
        "slow_ratio = -1",
        "straggler_ratio = 0",
        "straggler_ratio = 1e9",
        'slow_ratio = "half"',
    ],
)
def test_what_is_no_such_number_is_refused_at_its_line(tmp_path, line):
    with pytest.raises(SpecError) as refused:
        spec(tmp_path, f"[preflight.limits]\n{line}\n")
    assert ":9" in str(refused.value) or refused.value.problems[0].line == 9
