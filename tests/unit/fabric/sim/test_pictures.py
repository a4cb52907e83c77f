"""Pictures and the page: what is drawn, not how."""

from __future__ import annotations

import pytest

from fairlead.fabric.sim import pictures
from fairlead.records.verdict import Verdict
from support.sim_runs import MRC_64, play

TEXT = MRC_64 + (
    '[[traffic]]\nkind = "training"\nnics = "0-56/8"\nsize_bytes = 800_000\nsteps = 2\ncompute_us = 5\n'
    '[[fault]]\nkind = "t1"\nplane = 1\nt1 = 3\nat_us = 20\nuntil_us = 40\n'
    '[[fault]]\nkind = "port"\nplane = 0\nnic = 9\nat_us = 30\n'
    '[[fault]]\nkind = "slow"\nplane = 0\nt0 = 0\nt1 = 1\nrate = 0.5\n'
)


@pytest.fixture(scope="module")
def results():
    return play(TEXT).results


def test_every_picture_has_its_data(results):
    found = pictures.figures(results, "the command")
    assert list(found) == ["goodput", "planes", "completion", "queues", "depths", "paths", "steps", "fabric"]
    for figure in found.values():
        svg = figure.svg()
        assert svg.startswith("<svg")
        assert "</svg>" in svg
        assert figure.table.rows


def test_faults_stand_in_the_pictures(results):
    assert "t1 plane 1 t1 3 down" in pictures.goodput(results).svg()
    fabric = pictures.fabric(results)
    assert fabric is not None
    drawn = fabric.svg()
    assert "nic 9 down" in drawn
    assert "at 0.5 of its rate" in drawn


def test_the_page_is_whole_and_says_how_it_was_made(results):
    html = pictures.page(results, command="fairlead fabric sim x.toml", version="1", written="now")
    for figure in pictures.figures(results).values():
        assert figure.title in html
    assert "fairlead fabric sim x.toml" in html
    assert pictures.verdict(results) is Verdict.PASS


def test_a_fabric_too_large_to_draw_is_not_drawn():
    text = "[topology]\nt0 = 65\nt1 = 2\nhosts_per_t0 = 1\n"
    text += '[[traffic]]\nkind = "flow"\nnics = "0"\nto = 9\nsize_bytes = 1000\n'
    assert "fabric" not in pictures.figures(play(text).results)
