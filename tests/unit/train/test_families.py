"""Streaming equals plain training to the bit, whatever a model's forward does between its layers."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from support.families import FAMILIES, config  # noqa: E402
from support.training import compare  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def test_there_are_many() -> None:
    assert len(FAMILIES) >= 24


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_loss_norm_parameters_and_moments_are_equal(family) -> None:
    wrong, results = compare(config(family), steps=2, clip=0.02)
    assert wrong == []
    assert all(result.clip < 1.0 for result in results)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_twenty_steps(family, dtype) -> None:
    wrong, results = compare(config(family), steps=20, clip=0.02, dtype=dtype)
    assert wrong == []
    assert any(result.clip < 1.0 for result in results)
