"""Every way of working gives the same bits; what cannot be streamed is said by name."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import TrainError  # noqa: E402
from fairlead.train import Engine, ParamGroup, Settings, random_values, skeleton, take_apart  # noqa: E402
from support.families import config  # noqa: E402
from support.training import CPU, GROUPS, compare, first_weights, micro_batches, train_plainly, train_streamed  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

WAYS = {
    "two slots": {"slots": 2},
    "one slot": {"slots": 1},
    "more slots than layers": {"slots": 9},
    "one micro-batch": {"accumulation": 1},
    "three micro-batches": {"accumulation": 3},
    "bf16": {"dtype": torch.bfloat16},
    "bf16, one micro-batch, whose gradients travel in bf16": {"dtype": torch.bfloat16, "accumulation": 1},
    "no clipping, so that updates begin in backward": {"clip": None},
    "some blocks on the device": {"on_device": frozenset({0, 2})},
    "all blocks on the device": {"on_device": frozenset(range(5))},
    "bf16, some blocks on the device": {"on_device": frozenset({0, 1, 4}), "dtype": torch.bfloat16},
}


@pytest.mark.parametrize("way", WAYS)
def test_equal_to_the_bit(way) -> None:
    wrong, _ = compare(config("llama"), **WAYS[way])
    assert wrong == []


@pytest.mark.parametrize("accumulation", [1, 2, 3])
def test_a_head_tied_to_the_embedding(accumulation) -> None:
    tied = config("llama")
    tied.tie_word_embeddings = True
    wrong, _ = compare(tied, accumulation=accumulation)
    assert wrong == []


def test_groups_with_rates_of_their_own_and_frozen_parameters() -> None:
    groups = (ParamGroup("*norm*", 0.0, lr_scale=0.5), ParamGroup("*", 0.3))
    frozen = (
        "model.embed_tokens.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.weight",
    )
    wrong, _ = compare(config("llama"), groups=groups, frozen=frozen)
    assert wrong == []


def test_all_but_one_layer_frozen() -> None:
    """Nothing that comes into the layers has a gradient."""
    frozen = tuple(name for name in first_weights(config("llama")) if ".layers.2." not in name)
    wrong, _ = compare(config("llama"), frozen=frozen)
    assert wrong == []


@pytest.mark.parametrize("family", ["llama", "gemma2", "cohere", "granite", "opt"])
def test_the_head_in_pieces_gives_the_same_up_to_rounding(family) -> None:
    shape = config(family)
    first, data = first_weights(shape), micro_batches(shape.vocab_size, steps=2, accumulation=2)
    losses, norms, plain = train_plainly(shape, first, data, [1e-3] * 2, dtype=torch.float32, clip=None, seed=7)
    results, streamed = train_streamed(shape, first, data, [1e-3] * 2, clip=None, seed=7, head_tokens=5)
    assert [r.loss for r in results] == pytest.approx(losses, rel=1e-5)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=1e-4)
    far = max(
        float((streamed[name]["m"] - m).norm() / m.norm())
        for name, (_, m, _) in plain.items()
        if float(m.norm()) > 1e-5
    )
    assert far < 1e-4


def test_a_block_draws_its_first_weights_by_the_models_rules_and_by_itself() -> None:
    parts = take_apart(skeleton(config("llama"), torch.float32), GROUPS)
    values = dict(random_values(parts, 5, CPU))
    assert values.keys() == {param.name for block in parts.blocks for param in block.params}
    assert bool((values["model.layers.1.input_layernorm.weight"] == 1).all())
    spread = float(values["model.layers.3.mlp.up_proj.weight"].std())
    assert spread == pytest.approx(parts.model.config.initializer_range, rel=0.1)
    again = dict(random_values(parts, 5, CPU))
    other = dict(random_values(parts, 6, CPU))
    name = "model.layers.2.mlp.up_proj.weight"
    assert torch.equal(values[name], again[name])
    assert not torch.equal(values[name], other[name])


def test_a_failed_forward_ends_the_step_and_leaves_no_thread() -> None:
    import threading

    before = threading.active_count()
    shape = config("llama")
    engine = Engine(take_apart(skeleton(shape, torch.float32), GROUPS), Settings(CPU, accumulation=2))
    engine.fill(first_weights(shape).items())
    bad = [{"input_ids": torch.full((1, 4), 10_000), "labels": torch.zeros(1, 4, dtype=torch.long)}] * 2
    with pytest.raises(IndexError):
        engine.step(bad, lr=1e-3)
    engine.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("where", ["in memory", "in a store"])
def test_an_interrupt_in_the_middle_of_a_step_leaves_no_thread(accumulation, where, tmp_path, monkeypatch) -> None:
    import threading

    before = threading.active_count()
    shape = config("llama")
    shape.num_hidden_layers = 12
    store = tmp_path / "store" if where == "in a store" else None
    engine = Engine(
        take_apart(skeleton(shape, torch.float32), GROUPS),
        Settings(CPU, accumulation=accumulation, slots=1, store=store),
    )
    engine.fill(first_weights(shape).items())
    (batches,) = micro_batches(shape.vocab_size, steps=1, accumulation=accumulation)
    real, calls = engine.enter, []

    def enter(layer, *, forward):
        calls.append(layer)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(layer, forward=forward)

    monkeypatch.setattr(engine, "enter", enter)
    with pytest.raises(KeyboardInterrupt):
        engine.step(batches, lr=1e-3)
    engine.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("family", ["opt", "biogpt"])
def test_a_model_that_leaves_out_layers_is_refused(family) -> None:
    with pytest.raises(TrainError, match=r"leaves out layers at random \(layerdrop 0\.1\)") as refused:
        take_apart(skeleton(config(family, layerdrop=0.1), torch.float32), GROUPS)
    assert refused.value.code == "train/no-layers"


def test_a_model_without_decoder_layers_of_its_own_is_refused() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    with torch.device("meta"):
        model = T5ForConditionalGeneration(
            T5Config(vocab_size=32, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
        )
    with pytest.raises(TrainError, match="lists of decoder layers"):
        take_apart(model, GROUPS)


def test_shared_layers_are_refused() -> None:
    model = skeleton(config("llama"), torch.float32)
    model.model.layers[2].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    with pytest.raises(TrainError, match="are one parameter"):
        take_apart(model, GROUPS)
