"""Names that come from a store: which become files, and in which order. The bad ones are those of the OWASP guide on
path traversal, and what object stores allow as keys (S3: any UTF-8 of 1,024 bytes)."""

from __future__ import annotations

import posixpath
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import FairleadError, UsageError
from fairlead.weights.objects import Object, bad_names, in_order, read_tsv, tsv, wanted, without_folders
from fairlead.weights.planned import Rates, bound_s, plan_of, predicted_s, presence


def named(*paths: str, size: int = 1) -> list[Object]:
    return [Object(path=p, size=size) for p in paths]


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "a/..", "/etc/passwd", "//x", "a//b", "./a", "a/.", "", "a\nb", "a\x00b", "\x1b[2J",
     "x" * 256, "d/" * 70 + "x", ".fairlead/record.json", "a/" + "y" * 1023, "\ud800"],
)  # fmt: skip
def test_names_that_cannot_become_files(path):
    assert [name for name, _ in bad_names(named(path, "good"))] == [path]


def test_names_of_real_models_can():
    good = ["config.json", "model-00001-of-00163.safetensors", "onnx/model.onnx_data", ".gitattributes",
            "ein größe/ä.bin", "a b#?%25.txt", "..hidden", "a...b"]  # fmt: skip
    assert list(bad_names(named(*good))) == []


def test_names_that_only_some_file_systems_tell_apart():
    clash = dict(bad_names(named("README.md", "readme.md", "\u00e9.txt", "e\u0301.txt", "other")))
    assert set(clash) == {"readme.md", "e\u0301.txt"}
    assert "README.md" in clash["readme.md"]


def test_a_file_in_the_way_of_a_folder():
    assert [name for name, _ in bad_names(named("a", "a/b"))] == ["a/b"]
    left = without_folders([Object(path="a", size=0), *named("a/b", "c/")])
    assert [o.path for o in left] == ["a/b"], "markers of folders, which some stores keep, are no files"


def test_sizes_that_cannot_be():
    assert (
        len(
            list(bad_names([Object(path="a", size=-1), Object(path="b", size=1 << 60), Object(path="c", size=6 << 40)]))
        )
        == 2
    )


@given(st.text(max_size=40))
def test_what_is_allowed_stays_below_the_destination(path):
    if not list(bad_names(named(path))):
        joined = posixpath.normpath(f"/dest/{path}")
        assert joined.startswith("/dest/")
        assert PurePosixPath(joined).relative_to("/dest").as_posix() == path


def test_patterns_and_order():
    files = named("b.safetensors", "a.safetensors", "index.json", "sub/c.json")
    assert [o.path for o in wanted(files, ["*.json"], ["sub/*"])] == ["index.json"]
    ordered, early = in_order(files, ["*.json", "a.*"])
    assert ([o.path for o in ordered], early) == (["index.json", "sub/c.json", "a.safetensors", "b.safetensors"], 3)


def test_a_list_of_files_survives_the_way_and_says_where_it_is_wrong(tmp_path):
    files = [Object(path="a b", size=3, modified="2026-01-02T03:04:05+00:00"), Object(path="c", size=0)]
    path = tmp_path / "list.tsv"
    path.write_text(tsv(files))
    assert read_tsv(path) == files
    path.write_text("name\tsize\tmtime\na\t5\t2026\n")
    assert [o.size for o in read_tsv(path)] == [5]
    path.write_text("a\t5\nb\tx\n")
    with pytest.raises(UsageError, match=r"list.tsv:2"):
        read_tsv(path)
    path.write_bytes(b"a\t5\tx\ry\n" + b"b\t6\t" + b"x" * 200_000 + b"\n")  # what the csv module refuses
    assert [o.size for o in read_tsv(path)] == [5, 6]


def test_a_plan_of_nothing_and_of_bad_names():
    with pytest.raises(FairleadError) as none:
        plan_of([], source="s3://b/x")
    assert none.value.code == "weights/nothing"
    with pytest.raises(UsageError) as bad:
        plan_of(named("../x", "ok"), source="s3://b/x")
    assert bad.value.code == "weights/name"


def test_the_key_of_a_plan_names_versions_and_sizes():
    one = plan_of([Object(path="a", size=5, tag="1")], source="x")
    assert one.key == plan_of([Object(path="a", size=5, tag="1")], source="y").key
    assert (
        len(
            {
                one.key,
                *(plan_of([o], source="x").key for o in (Object(path="a", size=5, tag="2"), Object(path="a", size=6))),
            }
        )
        == 3
    )


def test_the_bound_and_the_prediction():
    plan = plan_of([Object(path="a", size=8 << 30)], source="x")
    rates = Rates(origin=50e6, link=50e6, write=1e9)
    assert bound_s(8 << 30, rates) == pytest.approx((8 << 30) / 50e6)
    assert bound_s(0, rates) == 0
    assert 1 < predicted_s(plan, 8 << 30, 16, rates) / bound_s(8 << 30, rates) < 1.02
    has = {"a": bytearray([1, 1, 0, 0]), "b": bytearray([1, 0, 0, 0])}
    assert presence(4, has) == {"all": 1, "some": 1, "none": 2}
