"""The reference page of scenarios, and that every key of the model has its sentence."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead.fabric.sim import rules
from fairlead.fabric.sim.model import Fault, Scenario, Topology, Traffic, Transport
from fairlead.fabric.sim.reference import pages
from fairlead.spec.docs import structs

ROOT = Path(__file__).parents[4]


def test_the_page_is_fresh():
    for name, text in pages().items():
        assert (ROOT / "docs" / "reference" / name).read_text("utf-8") == text, "make docs"


def test_every_key_stands_on_the_page():
    page = pages()["fabric-scenario.md"]
    for struct in structs(Scenario):
        for field in msgspec.structs.fields(struct):
            assert f"| `{field.encode_name}` |" in page or f"[{field.encode_name}]" in page or field.name == "title"


@pytest.mark.parametrize(
    ("struct", "taken"),
    [
        (Topology, rules.TOPOLOGY_KEYS),
        (Transport, {**rules.TRANSPORT_KEYS, "each": rules.COMMON_TRANSPORT}),
        (Traffic, rules.TRAFFIC_KEYS),
        (Fault, rules.FAULT_KEYS),
    ],
)
def test_every_key_is_taken_by_some_kind_and_no_kind_takes_another(struct, taken):
    known = {key for keys in taken.values() for key in keys}
    assert known - {"kind"} == {field.encode_name for field in msgspec.structs.fields(struct)} - {"kind", "name"}
