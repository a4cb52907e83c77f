"""Model directories and texts of strangers: nothing outside is read, no code of theirs runs, nothing is waited for."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from fairlead.errors import TrainError
from fairlead.train.config import Config, Data, Model
from fairlead.train.data import _mapped
from fairlead.train.named import model_of
from fairlead.train.texts import samples
from fairlead.train.weights import _files


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", ""])
def test_an_index_that_names_files_outside_of_the_folder_is_refused(tmp_path, name):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name, "b": "b"}}))
    with pytest.raises(TrainError) as refused:
        _files(tmp_path)
    assert refused.value.code == "train/weights"


@pytest.mark.parametrize("text", ["[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": 1}}', "{"])
def test_an_index_of_another_shape_is_refused_by_its_own_error(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(TrainError):
        _files(tmp_path)


def test_code_that_comes_with_a_model_is_neither_run_nor_asked_about(tmp_path, monkeypatch):
    """`auto_map` is how a model brings its own code: the library would ask at the terminal whether to run it."""
    (tmp_path / "planted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    auto = {"AutoConfig": "planted.Config", "AutoModelForCausalLM": "planted.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "planted", "auto_map": auto}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(TrainError) as refused:
        model_of(Config(model=Model(path="."), data=Data(tokens="t.npy")), tmp_path)
    assert refused.value.code == "train/model"
    assert not (tmp_path / "ran").exists()


@pytest.mark.timeout(10)
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TrainError):
        _mapped(tmp_path / "pipe")
    with pytest.raises(TrainError):
        next(samples(tmp_path / "pipe", None, Data(text="pipe")))
