"""Headers of safetensors: files that the package safetensors wrote, damaged, and what its own loader says of each."""

from __future__ import annotations

import json

import pytest

from fairlead.base.tensors import odd, odd_index, odd_tensors

_MISSING = "missing: pip install 'fairlead[train]'"
np = pytest.importorskip("numpy", reason=_MISSING)
safetensors = pytest.importorskip("safetensors", reason=_MISSING)
save = pytest.importorskip("safetensors.numpy", reason=_MISSING).save


def written() -> bytes:
    """Two tensors, as the package serializes them."""
    tensors = {"a": np.arange(6, dtype="float32").reshape(2, 3), "b.weight": np.arange(5, dtype="float16")}
    return save(tensors, metadata={"format": "pt"})


def with_header(change) -> bytes:
    data = written()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def ours(data: bytes) -> str:
    return odd_tensors(len(data), lambda at, num: data[at : at + num])


def theirs(data: bytes) -> bool:
    """Whether the package's own parser takes it."""
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


def set_offsets(name: str, begin: int, end: int):
    return lambda header: header[name].update(data_offsets=[begin, end])


DAMAGED = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "a byte short": written()[:-1],
    "a byte more": written() + b"x",
    "cut in the header": written()[:40],
    "zeros": bytes(4096),
    "a pointer of git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
    "a length beyond all": (1 << 63).to_bytes(8, "little") + bytes(100),
    "no JSON": with_header(dict.copy).replace(b'{"', b'["', 1),
    "an overlap": with_header(set_offsets("b.weight", 20, 30)),
    "a hole": with_header(set_offsets("a", 4, 28)),
    "backwards": with_header(set_offsets("a", 24, 0)),
    "another shape": with_header(lambda h: h["a"].update(shape=[2, 4])),
    "a negative size": with_header(lambda h: h["a"].update(shape=[-2, -3])),
    "no type": with_header(lambda h: h["a"].pop("dtype")),
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_what_the_loader_refuses_is_odd(data):
    assert not theirs(data), "the fixture is what it says"
    assert ours(data)


def test_what_the_loader_takes_is_not():
    for data in (written(), save({}), with_header(lambda h: h.pop("__metadata__"))):
        assert theirs(data)
        assert ours(data) == ""


def test_a_type_of_tomorrow_is_let_through():
    assert ours(with_header(lambda h: h["a"].update(dtype="F9"))) == ""


def test_an_index_names_files_that_are_there():
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": {"x": "m-1.safetensors"}}).encode()
    assert odd_index("d/model.safetensors.index.json", index, {"d/m-1.safetensors"}) == ""
    assert "m-1.safetensors" in odd_index("d/model.safetensors.index.json", index, {"m-1.safetensors"})
    for bad in (b"{}", b"[]", b"\xff", b'{"weight_map": 3}', b'{"weight_map": {"x": []}}'):
        assert odd_index("i", bad, ())


def test_other_files_are_not_looked_at():
    assert odd("config.json", 3, lambda *_: b"{{{", ()) == ""


def test_an_index_that_names_numbers_is_said():
    assert odd_index("a/x.safetensors.index.json", b'{"weight_map": {"x": -1}}', {"a/y"}) == (
        "it names -1, which is not among the files"
    )
