"""Exported weights: one export or another, never a mix, never beside others', and what stops one is said."""

from __future__ import annotations

import builtins
import errno
import json
import os
import shutil

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM  # noqa: E402

from fairlead.errors import DiskFull, Exit, NotPermitted, TrainError  # noqa: E402
from fairlead.train import exports  # noqa: E402
from support.runs import opened, prepare, trained  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def first_weight(folder):
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return net.get_parameter("model.layers.0.mlp.up_proj.weight").detach()


@pytest.fixture
def exported(tmp_path):
    """A run of two steps of four, exported after the first."""
    toml = prepare(tmp_path)
    with opened(toml) as run:
        list(run.train(1))
        run.export(tmp_path / "out")
        list(run.train(1))
    return toml


def test_an_export_goes_nowhere_beside_weights_of_others(tmp_path) -> None:
    toml = prepare(tmp_path)
    trained(toml, 1)
    before = sorted(path.name for path in (tmp_path / "model").iterdir())
    with opened(toml, resume=True) as run:
        with pytest.raises(TrainError, match=r"no export of fairlead: model.safetensors") as found:
            run.export(tmp_path / "model")
        assert found.value.code == "train/other-weights"
        for name in ("pytorch_model.bin", "adapter_config.json", "model.safetensors.index.json"):
            place = tmp_path / name.replace(".", "-")
            place.mkdir()
            (place / name).write_text('{"metadata": {}}')
            (place / "model.gguf").write_text("x")
            with pytest.raises(TrainError, match=name):
                run.export(place)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == before


def test_an_export_replaces_one_of_ours_whole(exported) -> None:
    out = exported.parent / "out"
    stale = out / "model-00009-of-00009.safetensors"
    shutil.copy(next(out.glob("model-*.safetensors")), stale)
    listed = json.loads((out / exports.LIST).read_text())
    (out / exports.LIST).write_text(json.dumps({"files": [*listed["files"], stale.name]}))
    before = first_weight(out)
    with opened(exported, resume=True) as run:
        run.export(out)
        now = dict(run.state())["model.layers.0.mlp.up_proj.weight"]["p"]
        assert not torch.equal(now, before)
        assert torch.equal(first_weight(out), now)
    assert not stale.exists()
    assert not (out / ".coming").exists()


def test_an_export_that_is_killed_anywhere_leaves_one_or_the_other_or_nothing_that_loads(exported, monkeypatch) -> None:
    out = exported.parent / "out"
    shutil.copytree(out, exported.parent / "old")
    old, loaded = first_weight(out), []

    class Killed(BaseException):
        pass

    calls = [0]

    def killing(at):
        calls[0] = 0

        def counted(real):
            def call(*args, **words):
                calls[0] += 1
                if calls[0] > at:
                    raise Killed
                return real(*args, **words)

            return call

        return counted

    with opened(exported, resume=True) as run:
        new = dict(run.state())["model.layers.0.mlp.up_proj.weight"]["p"].clone()
        at = 0
        while True:
            shutil.rmtree(out)
            shutil.copytree(exported.parent / "old", out)
            with monkeypatch.context() as patch:
                counted = killing(at)
                for owner, name in ((os, "fsync"), (type(out), "replace"), (type(out), "unlink")):
                    patch.setattr(owner, name, counted(getattr(owner, name)))
                patch.setattr(exports.shutil, "rmtree", lambda *_, **__: None)  # a kill cleans nothing up
                try:
                    run.export(out)
                except Killed:
                    is_killed = True
                else:
                    is_killed = False
            try:
                found = first_weight(out)
            except OSError:
                loaded.append("nothing")
            else:
                assert torch.equal(found, old) or torch.equal(found, new), at
                loaded.append("old" if torch.equal(found, old) else "new")
            if not is_killed:
                break
            run.export(out)  # and the next one goes through
            assert torch.equal(first_weight(out), new)
            at += 1
    assert loaded[-1] == "new"
    assert [*dict.fromkeys(loaded)] == ["old", "nothing", "new"]
    assert sorted(loaded, key=["old", "nothing", "new"].index) == loaded


def test_a_full_disk_leaves_the_export_before_and_no_half_one(exported, monkeypatch) -> None:
    out, save = exported.parent / "out", exports.save_file
    old, calls = first_weight(out), [0]

    def full(*args, **words):
        calls[0] += 1
        if calls[0] == 2:
            raise exports.SafetensorError("I/O error: No space left on device (os error 28)")
        return save(*args, **words)

    monkeypatch.setattr(exports, "save_file", full)
    with opened(exported, resume=True) as run:
        for place in (out, exported.parent / "fresh"):
            calls[0] = 0
            with pytest.raises(DiskFull, match=r"no room left") as found:
                run.export(place)
            assert found.value.exit == Exit.RETRY
    assert torch.equal(first_weight(out), old)
    assert not (out / ".coming").exists()
    assert not (exported.parent / "fresh").exists()


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_store_that_cannot_be_written_to_is_said(number, exported, monkeypatch) -> None:
    real = builtins.open

    def refuse(path, *args, **words):
        if str(path).endswith("manifest.lock"):
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **words)

    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(NotPermitted, match=r"cannot write .*store/manifest.lock"):
        opened(exported, resume=True)
