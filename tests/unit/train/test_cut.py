"""Layers cut in their modules give the bits of plain training, need less, and go on after a kill."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.train import random_values, skeleton, take_apart  # noqa: E402
from fairlead.train.schedule import Do, hazards, plan  # noqa: E402
from support.families import config  # noqa: E402
from support.training import CPU, GROUPS, compare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def apart(family, most):
    return take_apart(skeleton(config(family), torch.float32), GROUPS, most)


def layer_size(family):
    return max(block.numel for block in apart(family, 0).blocks[1:])


def widest(parts):
    return max(block.numel for block in parts.blocks[1:])


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("deep", [False, True], ids=["attention and mlp", "each matrix"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral", "gpt2"])
def test_equal_to_the_bit(family, deep, accumulation) -> None:
    most = 1 if deep else layer_size(family) - 1
    parts = apart(family, most)
    assert len(parts.cut) == len(parts.model.get_submodule(parts.layers))
    wrong, _ = compare(config(family), accumulation=accumulation, most=most, slots=2)
    assert wrong == []


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("family", ["cohere", "olmo2", "gpt_neox"])
def test_what_several_pieces_or_the_residual_read_is_cut_in_matrices(family, accumulation) -> None:
    """Gradients of one input are added in one order."""
    wrong, _ = compare(config(family), accumulation=accumulation, most=1, slots=2)
    assert wrong == []


@pytest.mark.parametrize("way", [{"dtype": torch.bfloat16}, {"clip": None}, {"on_device": frozenset({0, 2})}])
def test_other_ways_of_working(way) -> None:
    wrong, _ = compare(config("llama"), most=1, **way)
    assert wrong == []


def test_first_weights_do_not_depend_on_the_cut() -> None:
    whole, cut = (dict(random_values(apart("llama", most), 5, CPU)) for most in (0, 1))
    assert whole.keys() == cut.keys()
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())


def test_pieces_are_smaller_and_stacked_experts_stay_whole() -> None:
    size = layer_size("llama")
    assert widest(apart("llama", size)) == size
    assert widest(apart("llama", 1)) < widest(apart("llama", size - 1)) < size
    names = {block.name for block in apart("mixtral", 1).blocks}
    assert "model.layers.0.mlp.experts" in names
    assert not any("experts." in name for name in names)


def test_random_schedules_have_no_hazard_and_lose_one_when_an_operation_is_lost() -> None:
    draw = random.Random(3)
    for _ in range(100):
        schedule = plan(draw.randrange(1, 30), draw.randrange(1, 9))
        ops = list(schedule.ops())
        assert hazards(schedule, ops) == []
        lost = draw.choice([op for op in ops if op.do in (Do.COPY, Do.FORWARD, Do.BACKWARD, Do.KEEP)])
        ops.remove(lost)
        assert hazards(schedule, ops)
