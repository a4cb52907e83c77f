"""Models that `serve run` does not load: each is refused by its code before an engine is started."""

from __future__ import annotations

import json

import pytest

from fairlead.cli.app import run
from support.served import model

for _name in ("aiohttp", "transformers", "accelerate", "fastapi"):
    pytest.importorskip(_name, reason=f"needs {_name}: extras `serve` and `engine`")


def _no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()


def _pickle(folder):
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02}.")


def _truncated(folder):
    path = next(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])


def _link_out(folder):
    (folder / "passwd").symlink_to("/etc/passwd")


CASES = {
    "serve/no-tokenizer": _no_tokenizer,
    "serve/pickle": _pickle,
    "serve/damaged": _truncated,
    "serve/link-out": _link_out,
}


def served(folder, capsys, *words):
    status = run(["serve", "run", str(folder), "--engine", "transformers", "--dry-run", "--json", *words])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("code", CASES)
def test_what_is_no_model_to_serve_is_refused_by_its_code(tmp_path, capsys, code):
    folder = model(tmp_path / "m")
    assert served(folder, capsys)[0] == 0
    CASES[code](folder)
    status, said = served(folder, capsys)
    assert (status, said["error"]["code"]) == (2, code)


def test_pickles_are_loaded_where_that_is_asked_for(tmp_path, capsys):
    folder = model(tmp_path / "m")
    _pickle(folder)
    status, said = served(folder, capsys, "--allow-pickle")
    assert (status, said["engine"]) == (0, "transformers")
