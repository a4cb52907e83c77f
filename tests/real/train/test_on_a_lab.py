"""A host of a live lab loses power in the middle of a run: the error names it, and those that are left go on."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.train.config import load
from fairlead.train.session import Session
from support.injector import FAIRLEAD, World
from support.trials import world
from unit.train.test_ranks import MEMORY
from unit.train.test_session import losses, prepare

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "torch"),
    pytest.mark.filterwarnings("ignore"),
]

TEXT = MEMORY.replace("steps = 4", "steps = 2000").replace("rows = 2", "rows = 1") + '\n[memory]\ndevice = "cpu"\n'


@pytest.fixture
def lab() -> Iterator[World]:
    with world(hosts=4, gpus=1, planes=2) as made:
        yield made


@pytest.fixture
def shared() -> Iterator[Path]:
    """Where every host sees it: they share home directories."""
    with tempfile.TemporaryDirectory(dir=Path.home(), prefix=".fairlead-train-") as place:
        yield Path(place)


def words(lab: World, verb: str, folder: Path, *more: str) -> list[str]:
    runs = str(folder / "runs")
    command = [*FAIRLEAD, "train", verb, str(folder / "train.toml"), "-f", str(lab.file), "--runs", runs, "--json"]
    return [*command, "--threads", "1", *more]


def test_a_host_without_power_is_named_and_the_others_go_on_to_the_same_end(lab, shared, tmp_path, one_thread):
    many, alone = shared / "many", tmp_path / "alone"
    for folder in (many, alone):
        folder.mkdir()
        prepare(folder, "llama", TEXT.replace('keep = "memory"', 'keep = "disk"'))
    metrics = many / "metrics.jsonl"
    began = subprocess.Popen(
        words(lab, "run", many), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=shared
    )
    deadline = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) >= 2):
        assert began.poll() is None, began.communicate()
        assert time.monotonic() < deadline, began.kill() or began.communicate()
        time.sleep(0.05)
    subprocess.run([*FAIRLEAD, "lab", "fault", "-n", lab.name, "node-dead", "n1"], check=True, capture_output=True)
    killed = time.monotonic()
    out, err = began.communicate(timeout=90)
    assert time.monotonic() - killed < 30
    assert began.returncode != 0
    assert "train/rank-lost" in out + err
    assert "on n1" in out + err
    assert "-x n1" in out + err
    kept = len(metrics.read_text().splitlines())
    done = subprocess.run(
        words(lab, "resume", many, "-x", "n1", "--steps", "3"), capture_output=True, text=True, timeout=120, cwd=shared
    )
    assert done.returncode == 0, done.stdout + done.stderr
    end = json.loads(done.stdout)["steps"]
    assert end in (kept + 2, kept + 3, kept + 4), "what was told of was not kept"
    with Session.open(load(alone / "train.toml"), alone) as run:
        list(run.train(end))
    assert losses(many) == losses(alone)
