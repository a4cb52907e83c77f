"""A layer as a node: what passes through has its gradient, forward is computed again as far as it is missed."""

from __future__ import annotations

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from fairlead.train.lanes import Rng  # noqa: E402
from fairlead.train.layer import Call, StreamedLayers  # noqa: E402

CPU = torch.device("cpu")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = (nn.Linear(3, 3, bias=False, device="meta") for _ in range(2))
        self.calls = 0

    def forward(self, x, beside):
        hidden = self.first(x).sin()
        self.calls += 1
        return self.last(hidden), beside, hidden.detach()


class Weights:
    """There while a layer is computed, and something else afterwards, as in a ring of slots."""

    def __init__(self) -> None:
        self.real = {"first.weight": torch.eye(3) * 2, "last.weight": torch.eye(3) * 3}
        self.slot = {name: torch.zeros(3, 3) for name in self.real}
        self.found: list[dict] = []

    def enter(self, layer, *, forward):
        for name, value in self.real.items():
            self.slot[name].copy_(value)
        return self.slot

    def leave(self, layer, *, forward) -> None:
        for value in self.slot.values():
            value.fill_(torch.nan)

    def take(self, layer, micro, gradients) -> None:
        self.found.append(gradients)


def called(x, beside):
    layer, weights = Layer(), Weights()
    layers = StreamedLayers([layer], [("first.weight", "last.weight")], weights, CPU)
    (out,) = layers.forward([Call(0, (x, beside), {}, {}, Rng(CPU), None)])
    return layer, weights, out


def test_gradients_of_what_comes_in_of_what_passes_through_and_of_weights() -> None:
    x, beside = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    layer, weights, (out, through, aside) = called(x, beside)
    assert torch.equal(through, beside)
    (out.square().sum() + (through * 5).sum()).backward()
    real = {name: value.clone().requires_grad_() for name, value in weights.real.items()}
    plain = x.detach().clone().requires_grad_()
    hidden = (plain @ real["first.weight"].T).sin()
    (hidden @ real["last.weight"].T).square().sum().backward()
    assert torch.equal(x.grad, plain.grad)
    assert torch.equal(beside.grad, torch.full((4, 3), 5.0))
    assert torch.equal(aside, hidden.detach())
    (found,) = weights.found
    assert all(torch.equal(found[name], value.grad) for name, value in real.items())
    assert layer.calls == 2


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.products += func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm)
        return func(*args, **(kwargs or {}))


def test_the_last_product_is_not_computed_again() -> None:
    x, beside = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    with Counted() as counted:
        _, _, (out, _, _) = called(x, beside)
        assert counted.products == 2
        out.sum().backward()
        assert counted.products == 2 + 1 + 4


def test_a_step_that_ends_before_its_backward_holds_nothing() -> None:
    x, beside = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    layer, weights, out = called(x, beside)
    gone = weakref.ref(layer)
    del layer, weights, out
    gc.collect()
    assert gone() is None
