"""What `init` writes: it passes `check` as it stands, explains every setting, and every setting can be switched on."""

from __future__ import annotations

import datetime as dt
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import SpecError
from fairlead.spec.decode import Reading
from fairlead.spec.docs import sentences, structs
from fairlead.spec.loader import preset, preset_names, preset_text, read
from fairlead.spec.model import Spec
from fairlead.spec.resolve import leaves
from fairlead.spec.tables import spec_type
from fairlead.spec.write import toml_value, write


def written(name: str, via: str = "") -> str:
    tree = tomllib.loads(preset_text(name))
    if via:
        tree["access"]["via"] = via
    return write(tree, title=f"The preset {name}.")


@pytest.mark.parametrize("name", preset_names())
def test_the_file_of_each_preset_passes_check_and_means_the_same(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(written(name))
    loaded = read(path, environ={})
    assert loaded.warnings == ()
    assert loaded.spec == preset(name, environ={}).spec


def test_every_setting_is_explained_where_it_stands() -> None:
    files = written("lab") + written("nd-h100", "kubernetes")  # each table where it is read
    text = " ".join(re.sub(r"\n# ?", " ", files).split())
    for struct in structs(spec_type()):
        said = sentences(struct)
        assert struct is spec_type() or said.whole in text
        for sentence in said.fields.values():
            assert sentence in text, struct.__name__


def test_tables_nobody_would_read_are_left_out() -> None:
    assert "\n[lab]" not in written("nd-h100")
    assert "\n[slurm]" in written("nd-h100")
    assert "\n[slurm]" not in written("ncv6")


NOT_READ = {"lab": {"Kubernetes"}, "slurm": {"Lab", "Kubernetes"}, "kubernetes": {"Lab", "Slurm"}}


@pytest.mark.parametrize(("name", "via"), [("lab", "lab"), ("nd-h100", "slurm"), ("nd-h100", "kubernetes")])
def test_every_setting_can_be_switched_on(name: str, via: str) -> None:
    """A `#key = value` is right with its sign removed. Together they may contradict, so only types are looked at."""
    text = re.sub(r"(?m)^#(?=\S)", "", written(name, via))
    tree = tomllib.loads(text)
    missing = NOT_READ[via]
    switched = Reading(text, spec_type(), file="x").done().value
    for struct in structs(spec_type()):
        if struct.__name__ not in missing:
            assert struct is spec_type() or _holds(tree, struct), struct.__name__
    assert switched.waivers[0].expires == dt.date(2027, 1, 31)


def _holds(tree: dict[str, Any], struct: type) -> bool:
    names = set(sentences(struct).fields)
    rows = [row for value in tree.values() for row in (value if isinstance(value, list) else [value])]
    return any(isinstance(row, dict) and names == set(row) for row in rows)


def test_a_default_in_the_file_is_the_default_of_the_model() -> None:
    text = re.sub(r"(?m)^#(?=\S)", "", written("lab"))
    spec, plain = Reading(text, spec_type(), file="x").done().value, preset("lab", environ={}).spec
    examples = {"pool", "waiver", "expect"}
    different = {
        path
        for (path, a), (_, b) in zip(_plain(spec, examples), _plain(plain, examples), strict=True)
        if a != b and b is not None
    }
    # the name has no default of its own: an example stands there; what ranks run on follows from `via`
    assert different == {("lab", "name"), ("preflight", "ranks_on")}


def _plain(spec: Spec, without: set[str]) -> list[tuple[Any, Any]]:
    return [(path, value) for path, value in leaves(spec) if path[0] not in without]


def test_lines_are_short() -> None:
    for name in preset_names():
        assert max(map(len, written(name).splitlines())) <= 100


@given(
    st.recursive(
        st.one_of(
            st.booleans(),
            st.integers(-(2**62), 2**62),
            st.floats(allow_nan=False),
            st.dates(),
            st.text('a"\\\n\té\x1b😀'),
        ),
        lambda inner: st.lists(inner, max_size=3),
    )
)
def test_toml_value_is_read_back(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}")["x"] == value


def test_a_second_pool_is_not_explained_again(tmp_path: Path) -> None:
    pools = [{"name": name, "size": "other", "nodes": f"{name}1"} for name in ("a", "b")]
    text = write({"schema": 1, "pool": pools, "access": {"via": "ssh"}}, title="t")
    assert '\n\n[[pool]]\nname = "b"\nsize = "other"\nnodes = "b1"\n\n' in text
    path = tmp_path / "c.toml"
    path.write_text(text)
    assert [p.name for p in read(path, environ={}).spec.pools] == ["a", "b"]


def test_a_tree_without_pools_is_not_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(write({"schema": 1, "access": {"via": "ssh"}}, title="t"))
    with pytest.raises(SpecError, match=r"no nodes: the file has no \[\[pool\]\]"):
        read(path, environ={})
