"""The update is torch's, however it is cut; rates and clip factors are what torch computes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.train import Engine, Settings, optimizer, skeleton, take_apart  # noqa: E402
from fairlead.train.layout import ALIGN, Named, ParamGroup, block, group_of  # noqa: E402
from fairlead.train.optimizer import SGD, AdamW, Moment, clip_factor, rate, update  # noqa: E402
from support.families import config as tiny  # noqa: E402
from support.training import GROUPS as TRAINED  # noqa: E402
from support.training import first_weights, micro_batches, train_plainly, unequal  # noqa: E402

GROUPS = (ParamGroup("*bias", 0.0, lr_scale=2.0), ParamGroup("*", 0.1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("clip", [1.0, 0.37])
def test_pieces_do_not_change_a_bit(dtype, clip, monkeypatch) -> None:
    monkeypatch.setitem(optimizer.PIECE, "cpu", 512)
    one = block(0, "x", [Named("w", "w", (37, 41), 0), Named("bias", "bias", (1003,), 1)], GROUPS)
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(one.numel, generator=generator)
    m, v = torch.zeros(one.trained), torch.zeros(one.trained)
    plain = {param.name: torch.nn.Parameter(p[param.span].clone()) for param in one.params}
    torch_own = torch.optim.AdamW(
        [
            {"params": [plain["w"]], "weight_decay": 0.1, "lr": 1e-3},
            {"params": [plain["bias"]], "weight_decay": 0.0, "lr": 2e-3},
        ],
        fused=True,
    )
    for step in range(1, 4):
        g = torch.randn(one.trained, generator=generator).to(dtype)
        for param in one.params:
            plain[param.name].grad = g[param.span].float() * clip
        torch_own.step()
        update(one, p, m, v, g, Moment(1e-3, clip, AdamW(), {"w": step, "bias": step}))
    for param in one.params:
        assert torch.equal(p[param.span], plain[param.name].detach())
        assert torch.equal(v[param.span], torch_own.state[plain[param.name]]["exp_avg_sq"])


def test_a_parameter_without_gradient_is_left_alone() -> None:
    one = block(0, "x", [Named("w", "w", (8,), 0), Named("u", "u", (8,), 1)], GROUPS)
    p, m, v, g = (torch.ones(one.numel) for _ in range(4))
    update(one, p, m, v, g, Moment(1e-1, 1.0, AdamW(), {"w": 1}))
    assert bool((p[one.params[1].span] == 1).all())
    assert bool((p[one.params[0].span] < 1).all())


def test_clip_factor_is_torchs() -> None:
    gradient = torch.nn.Parameter(torch.zeros(3))
    for size in (0.1, 1.0, 3.3):
        gradient.grad = torch.tensor([size, 0.0, 0.0])
        before = gradient.grad.clone()
        norm = float(torch.nn.utils.clip_grad_norm_([gradient], 1.0))
        assert torch.equal(gradient.grad, before * clip_factor(norm, 1.0))
    assert clip_factor(5.0, None) == 1.0


def test_rates() -> None:
    shape = {"base": 2.0, "steps": 10, "warmup": 2}
    assert [rate("constant", step=s, **shape) for s in (0, 1, 2, 9)] == [1.0, 2.0, 2.0, 2.0]
    assert rate("linear", step=6, **shape) == pytest.approx(1.0)
    assert rate("cosine", step=2, **shape) == 2.0
    assert rate("cosine", step=10, floor=0.1, **shape) == pytest.approx(0.2)


def test_places_are_aligned_and_trained_ones_come_first() -> None:
    groups = (ParamGroup("a", 0.0, trainable=False), ParamGroup("*", 0.1))
    one = block(3, "x", [Named("a", "a", (3,), 0), Named("b", "b", (300, 2), 1), Named("c", "c", (1,), 2)], groups)
    assert [param.name for param in one.params] == ["b", "c", "a"]
    assert all(param.offset % ALIGN == 0 for param in one.params)
    assert (one.trained, one.numel) == (3 * ALIGN + ALIGN, 3 * ALIGN + 2 * ALIGN)
    assert group_of("z", ()) == ParamGroup("*", 0.0)


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False)])
def test_sgd_is_torchs_own(momentum, nesterov, one_thread) -> None:
    wrong = sgd_beside_torchs(SGD(momentum, nesterov), {})
    assert wrong == []


def test_sgd_goes_on_from_a_store_with_its_last_update_still_due(tmp_path, one_thread) -> None:
    assert sgd_beside_torchs(SGD(0.9, nesterov=True), {"store": tmp_path / "store"}, stop_after=2) == []


def sgd_beside_torchs(rule, settings, stop_after=None):
    """What differs from plain training after four steps; stopped without the last update, and gone on with."""
    shape = tiny("llama")
    first, data = first_weights(shape), micro_batches(shape.vocab_size, steps=4, accumulation=2)
    rates = [1e-1, 2e-1, 2e-1, 5e-2]
    words = {"momentum": rule.momentum, "nesterov": rule.nesterov}
    losses, norms, plain = train_plainly(shape, first, data, rates, dtype=torch.float32, clip=0.5, seed=7, sgd=words)
    parts = take_apart(skeleton(shape, torch.float32), TRAINED)
    made = Settings(torch.device("cpu"), accumulation=2, clip=0.5, rule=rule, **settings)
    engine = Engine(parts, made)
    engine.fill(first.items())
    results = []
    for step, (batches, lr) in enumerate(zip(data, rates, strict=True)):
        if step == stop_after:
            engine.close()
            engine = Engine(parts, made)
            assert engine.steps == step
        results.append(engine.step(batches, lr=lr, seed=7))
    wrong = unequal(plain, engine.state())
    engine.close()
    return wrong + [
        r for r, loss, norm in zip(results, losses, norms, strict=True) if (r.loss, r.grad_norm) != (loss, norm)
    ]
