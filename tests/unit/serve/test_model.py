"""What is bundled, and what is refused by name."""

from __future__ import annotations

import os
import pickle
import shutil

import pytest

from fairlead.errors import Exit, FairleadError
from fairlead.serve.model import NOASSERTION, licence_of, look, refuse
from support.served import model


@pytest.fixture
def folder(tmp_path):
    return model(tmp_path / "m")


def refused(folder, **how):
    with pytest.raises(FairleadError) as caught:
        refuse(look(folder), folder, **how)
    assert caught.value.exit is Exit.USAGE
    assert caught.value.hint
    return caught.value


def test_a_whole_model_is_taken_with_its_licence(folder):
    found = look(folder)
    refuse(found, folder)
    assert found.licence == "apache-2.0"
    assert [f.path for f in found.files] == sorted(
        p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()
    )
    assert found.size == sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def test_hidden_files_are_left_behind(folder):
    (folder / ".cache").mkdir()
    (folder / ".cache" / "token").write_text("x")
    (folder / ".fairlead").write_text("x")
    assert all(not f.path.startswith(".") for f in look(folder).files)


def test_a_model_without_a_tokenizer_is_refused(folder):
    (folder / "tokenizer.json").unlink()
    assert refused(folder).code == "serve/no-tokenizer"


def test_a_model_without_settings_is_refused(folder):
    (folder / "config.json").unlink()
    assert refused(folder).code == "serve/no-config"


def test_a_model_without_weights_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert refused(tmp_path).code == "serve/no-weights"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.dat"])
def test_pickles_are_refused_by_name_and_by_their_bytes_unless_asked_for(folder, name):
    (folder / name).write_bytes(pickle.dumps({"w": [1.0] * 100}))
    error = refused(folder)
    assert (error.code, name in error.message) == ("serve/pickle", True)
    refuse(look(folder), folder, allow_pickle=True)


def test_a_truncated_shard_is_refused_by_name(folder):
    shard = folder / "model-00002-of-00002.safetensors"
    os.truncate(shard, shard.stat().st_size - 4)
    error = refused(folder)
    assert (error.code, shard.name in error.message) == ("serve/damaged", True)


def test_an_index_whose_shard_is_missing_is_refused(folder):
    (folder / "model-00002-of-00002.safetensors").unlink()
    error = refused(folder)
    assert (error.code, "model-00002-of-00002" in error.message) == ("serve/damaged", True)


def test_a_link_out_of_the_model_is_refused_and_one_inside_is_taken(folder, tmp_path):
    (folder / "same.json").symlink_to("config.json")
    refuse(look(folder), folder)
    assert next(f for f in look(folder).files if f.path == "same.json").size == (folder / "config.json").stat().st_size
    (tmp_path / "outside").write_text("secret")
    (folder / "sly.json").symlink_to(tmp_path / "outside")
    assert refused(folder).code == "serve/link-out"


def test_a_snapshot_of_the_hubs_cache_is_refused_with_the_way_out(folder, tmp_path):
    """As huggingface_hub lays it out: snapshots/REVISION holds links into blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0"
    shutil.copytree(folder, blobs)
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert "cp -rL" in refused(snapshot).hint


def test_a_link_to_a_folder_and_a_pipe_are_refused(folder, tmp_path):
    os.mkfifo(folder / "pipe.json")
    assert refused(folder).code == "serve/not-a-file"
    (folder / "pipe.json").unlink()
    (tmp_path / "other").mkdir()
    (folder / "sub").symlink_to(tmp_path / "other")
    assert refused(folder).code == "serve/link-out"


def test_names_that_no_manifest_can_hold_are_refused(folder):
    (folder / "a\nb.json").write_text("x")
    with pytest.raises(FairleadError) as caught:
        look(folder)
    assert caught.value.code == "serve/name"


def test_gguf_needs_neither_settings_nor_tokenizer(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(64))
    refuse(look(tmp_path), tmp_path)
    (tmp_path / "n.gguf").write_bytes(b"<html>not found</html>")
    assert refused(tmp_path).code == "serve/damaged"


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: mit\n---\n", "mit"),
        ("---\r\nlicense: llama3.1\r\ntags: [a]\r\n---\r\n# x", "llama3.1"),
        ('---\ntags:\n- license: gpl\nlicense: "other" # ours\n---\n', "other"),
        ("# no head\nlicense: mit\n", NOASSERTION),
        ("---\nbase_model: x\n---\nlicense: mit\n---\n", NOASSERTION),
        ("", NOASSERTION),
    ],
)
def test_the_licence_is_what_the_cards_head_says(card, licence):
    assert licence_of(card) == licence
