"""Texts that share a row: families that keep them apart, and rows that are refused."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np

from fairlead.errors import TrainError
from fairlead.train import packing
from fairlead.train.config import Config, Data
from support.apart import keeps_apart
from support.families import FAMILIES, config

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]

PACKED = Config(data=Data(text="texts.jsonl"))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_table_is_what_plain_transformers_does(family) -> None:
    tiny = config(family)
    assert keeps_apart(tiny) is (tiny.model_type in packing.families())


def test_every_family_of_the_table_is_tried() -> None:
    assert packing.families() <= {config(family).model_type for family in FAMILIES}


@pytest.mark.parametrize("kind", ["mamba", "gpt_oss", "opt", "a_model_of_tomorrow"])
def test_packed_texts_are_refused_for_other_families(kind) -> None:
    with pytest.raises(TrainError, match=f"models of type {kind} are not known to keep texts apart") as found:
        packing.check(PACKED, kind)
    assert found.value.hint.startswith("pack = false")
    with pytest.raises(TrainError, match=kind):
        packing.check(Config(data=Data(tokens="a.npy", position_ids="b.npy")), kind)
    packing.check(Config(data=Data(text="texts.jsonl", pack=False)), kind)
    packing.check(Config(data=Data(tokens="a.npy", position_ids="b.npy", attention_mask="c.npy")), kind)
    packing.check(Config(data=Data(tokens="a.npy")), kind)


def test_texts_begin_where_positions_do_not_go_on() -> None:
    positions = np.array([[0, 1, 2, 0, 1], [5, 6, 9, 10, 3]])
    assert packing.begins(positions).tolist() == [[False, False, False, True, False], [False, False, True, False, True]]


def test_a_mask_beside_packed_texts_is_refused_and_padding_is_not() -> None:
    with pytest.raises(TrainError, match="begin anew among real tokens"):
        packing.check_mask(np.array([[0, 1, 0, 1]]), np.array([[1, 1, 1, 1]]))
    packing.check_mask(np.array([[1, 1, 0, 1]]), np.array([[0, 0, 1, 1]]))  # padding on the left
    packing.check_mask(np.array([[0, 1, 0, 0]]), np.array([[1, 1, 0, 0]]))
