"""`fairlead watch verify` on a folder here, and words that do not go together."""

from __future__ import annotations

import json
import subprocess

import pytest

from fairlead.watch.onnode.chain import Chain
from support.injector import FAIRLEAD


def said(*words):
    done = subprocess.run([*FAIRLEAD, "watch", *words, "--json"], capture_output=True, text=True, timeout=120)
    return done.returncode, json.loads(done.stdout)


@pytest.fixture
def folder(tmp_path):
    chain = Chain(str(tmp_path))
    chain.append([{"kind": "bytes", "t": i} for i in range(9)])
    chain.close()
    return tmp_path


def test_a_whole_chain_passes_a_changed_one_fails_by_line_and_a_cut_one_by_its_head(folder):
    status, found = said("verify", str(folder))
    assert (status, [f["code"] for f in found["findings"]]) == (0, ["watch/chain-whole"])
    head = f"8:{found['findings'][0]['data']['head']}"
    path = folder / "audit.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:4], lines[4].replace('"t":4', '"t":5'), *lines[5:]]) + "\n")
    status, found = said("verify", str(folder))
    assert (status, found["findings"][0]["data"]) == (3, {"n": 5, "file": "audit.jsonl", "line": 6})
    path.write_text("\n".join(lines[:6]) + "\n")
    assert said("verify", str(folder))[0] == 0
    assert said("verify", str(folder), "--head", head)[0] == 3


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("verify", "/no/such/folder"), "watch/no-records"),
        (("start", "/tmp"), "cli/usage"),
        (("verify", "--top"), "cli/usage"),
        (("show", "--head", "1:x"), "cli/usage"),
        (("verify", "/tmp", "--head", "x"), "cli/usage"),
        (("begin",), "cli/usage"),
    ],
)
def test_words_that_do_not_go_together_are_one_sentence(words, code):
    status, found = said(*words)
    assert (status, found["error"]["code"]) == (2, code)
    assert found["error"]["hint"]
