"""What a real scontrol prints of nodes in odd states, read as text and as JSON."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from fairlead.preflight.slurm.reason import bare, is_ours
from fairlead.preflight.slurm.scheduler import SHOW, SlurmNode, parse
from support.slurm import PrivateSlurm

pytestmark = [pytest.mark.real, pytest.mark.requires("slurm", "munge", "root")]

OURS = "fairlead node: 2026-11-20 gpu/count: 7 of 8 (run 20261120-100000-preflight-7f3a)"


@pytest.fixture(scope="module")
def slurm() -> Iterator[PrivateSlurm]:
    made = PrivateSlurm(4)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def update(slurm: PrivateSlurm, name: str, *words: str) -> None:
    done = subprocess.run(
        ["scontrol", "update", f"nodename={name}", *words], env=slurm.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def both(slurm: PrivateSlurm) -> tuple[dict[str, SlurmNode], dict[str, SlurmNode]]:
    """The nodes as text and as JSON say them; scontrol of 22.05 has no JSON of nodes, and sinfo has the same list."""
    return parse(slurm.ask(*SHOW)), parse(slurm.ask("sinfo", "--json"))


def test_states_and_reasons_as_text_and_as_json(slurm):
    update(slurm, "n1", "state=drain", f"reason={OURS}")
    update(slurm, "n1", "comment=was Reason=fan State=DOWN")
    update(slurm, "n2", "state=drain", f"reason={OURS}\nasked Ann")
    update(slurm, "n3", "state=fail", "reason=smoke")
    update(slurm, "n4", "comment=hello Reason=none State=DOWN", "extra=rack=7 State=FAIL")
    text, document = both(slurm)
    assert {n: node.bad_states for n, node in text.items()} == {
        "n1": ["DRAIN"], "n2": ["DRAIN"], "n3": ["FAIL"], "n4": [],
    }  # fmt: skip
    assert is_ours(text["n1"].reason)
    assert not is_ours(text["n2"].reason)
    assert bare(text["n3"].reason) == "smoke"
    assert text["n4"].reason == ""
    assert text["n4"].address == "127.0.0.1"
    assert {n: (d.states, d.gpus, d.cpus, d.address, bare(d.reason)) for n, d in document.items()} == {
        n: (t.states, t.gpus, t.cpus, t.address, bare(t.reason)) for n, t in text.items()
    }
