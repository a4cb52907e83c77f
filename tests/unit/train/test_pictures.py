"""Pictures of a run say what the run did: every visit is drawn, curves hold the numbers of the metrics file."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.report.html import page_html  # noqa: E402
from fairlead.train.config import load  # noqa: E402
from fairlead.train.pictures import curves, page, planned  # noqa: E402
from fairlead.train.schedule import plan  # noqa: E402
from fairlead.train.session import Session  # noqa: E402
from unit.train.test_session import STEPS, TEXT, prepare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
SVG = "{http://www.w3.org/2000/svg}"


def titles(svg):
    """What a pointer at each bar shows."""
    return [found.text for found in ET.fromstring(svg).iter(f"{SVG}title")]


@pytest.mark.parametrize(("blocks", "slots"), [(1, 1), (4, 2), (9, 3)])
def test_a_planned_step_draws_each_visit_and_a_stay_for_each_copy(blocks, slots) -> None:
    schedule = plan(blocks, slots)
    figure = planned(schedule)
    for block in range(blocks):
        assert {f"forward of block {block}", f"backward of block {block}"} <= set(titles(figure.svg()))
    rows = figure.table.rows
    assert sum(row[0] == "computing" for row in rows) == 2 * blocks
    assert sum(row[0].startswith("slot") for row in rows) == schedule.copies
    assert len({row[0] for row in rows}) == slots + 1


def test_what_happened_is_drawn_and_the_page_holds_what_the_metrics_say(tmp_path) -> None:
    prepare(tmp_path, text=TEXT.replace("[run]", '[run]\nkeep = "memory"'))
    with Session.open(load(tmp_path / "train.toml"), tmp_path) as run, run.traced(tmp_path / "step.svg"):
        list(run.train())
        layers = run.parts.num_layers
    drawn = titles((tmp_path / "step.svg").read_text())
    for block in range(1, layers + 1):
        assert drawn.count(f"forward of block {block}") == drawn.count(f"backward of block {block}") == STEPS
        assert drawn.count(f"update of block {block}") >= STEPS - 1
    told = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    figures = {figure.title: figure for figure in curves(told)}
    assert list(figures) == ["Loss", "Norm of gradients", "Tokens", "Memory"]
    assert f"from {told[0]['loss']:.4f} in step 0 to {told[-1]['loss']:.4f} in step {STEPS - 1}" in figures["Loss"].desc
    assert "host, peak so far" in figures["Memory"].table.header[-1]
    assert all(0 < line["host_gib"] <= line["peak_host_gib"] for line in told)

    html = page_html(page("tiny", told))
    assert all(re.search(f"<h2[^>]*>{title}", html) for title in figures)
    assert f"to {told[-1]['loss']:.4f}" in html


def test_lines_that_anybody_wrote_are_drawn_as_far_as_they_are_numbers() -> None:
    odd = [float("nan"), 10**400, "1", None, [], True, -(10**400)]
    lines = [
        {"step": n, **dict.fromkeys(("loss", "tokens_per_s", "host_gib", "seconds"), v)} for n, v in enumerate(odd)
    ]
    assert curves(lines) == []
    assert page("x", lines).headline == "No step is done."
    assert len(curves([*lines, {"step": 9, "loss": 2.0, "seconds": {"step": "x"}}])) == 1
