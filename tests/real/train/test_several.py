"""Training on ranks that the launcher starts here: as alone to the bit, who is killed is named, the rest goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.launch import Event, Said
from support.backends import LOCAL

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import TrainError
from fairlead.spec.model import Access, Pool, Spec
from fairlead.train.config import load
from fairlead.train.session import Session
from fairlead.train.spread import Asked, TrainRun, train_on
from unit.train.test_ranks import MEMORY
from unit.train.test_session import losses, prepare

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.requires("torch"),
    pytest.mark.filterwarnings("ignore"),
]

TEXT = MEMORY.replace("steps = 4", "steps = 2000").replace("rows = 2", "rows = 1") + '\n[memory]\ndevice = "cpu"\n'


def run(folder: Path, nodes: str, heard: Callable[[Event], object] = lambda _: None, **words) -> TrainRun:
    """Ranks on this machine under the names of nodes."""
    spec = Spec(schema=1, pools=(Pool(name="p", size="other", nodes=NodeSet(nodes)),), access=Access(via="local"))
    asked = Asked(config=folder / "train.toml", cpus=True, threads=1, host="127.0.0.1", **words)
    with LOCAL.cluster(python_of=lambda _: sys.executable) as cluster:
        return train_on(cluster, spec, NodeSet(nodes), asked, heard=heard)


def typed_in(folder: Path, verb: str, *words: str) -> str:
    """What the command prints; addresses are found by the probe."""
    (folder / "cluster.toml").write_text(
        f'schema = 1\n[access]\nvia = "local"\n'
        f'[[pool]]\nname = "p"\nsize = "other"\nnodes = "n[1-3]"\npython = "{sys.executable}"\n'
    )
    fairlead = [sys.executable, "-m", "fairlead", "train", verb, "train.toml", "-f", "cluster.toml", "--threads", "1"]
    return subprocess.run(
        [*fairlead, *words], cwd=folder, capture_output=True, text=True, timeout=120, check=True
    ).stdout


@pytest.mark.parametrize("keep", ["memory", "disk"])
def test_a_killed_rank_is_named_and_those_that_are_left_go_on_to_the_same_end(keep, tmp_path, one_thread):
    alone, many = tmp_path / "alone", tmp_path / "many"
    for folder in (alone, many):
        folder.mkdir()
        prepare(folder, "llama", TEXT.replace('keep = "memory"', f'keep = "{keep}"'))
    pids: dict[int, int] = {}
    killed: list[float] = []

    def kill(event: Event) -> None:
        """The task of rank 1, and with it its body, once two steps are done."""
        if isinstance(event, Said) and event.what == "start":
            pids[event.rank] = int(event.fields["pid"])
        if isinstance(event, Said) and event.what == "stepped" and event.fields["steps"] >= 2 and not killed:
            killed.append(time.monotonic())
            os.kill(pids[1], signal.SIGKILL)

    with pytest.raises(TrainError) as found:
        run(many, "n[1-3]", kill, resume=False)
    assert time.monotonic() - killed[0] < 15
    assert found.value.code == "train/rank-lost"
    assert "rank 1 on n2" in found.value.message
    assert "-x n2" in found.value.hint

    with Session.open(load(many / "train.toml"), many, resume=True) as session:
        end = session.done + 3
    assert end >= 5, "what was told of was not kept"
    assert f"{end} of 2000 steps on 2 nodes" in typed_in(many, "resume", "-x", "n2", "--steps", "3")
    with Session.open(load(alone / "train.toml"), alone) as session:
        list(session.train(end))
    assert losses(many) == losses(alone)


def test_what_a_rank_refuses_is_the_error_here(tmp_path):
    prepare(tmp_path, "llama", TEXT.replace("accumulation = 4", "accumulation = 1"))
    with pytest.raises(TrainError) as found:
        run(tmp_path, "n[1-2]", resume=False)
    assert found.value.code == "train/too-many-ranks"
    assert "1 micro-batches, too few for 2 ranks" in found.value.message
