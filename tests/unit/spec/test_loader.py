"""Finding, completing and explaining the cluster file: search order, precedence, presets, origins."""

from __future__ import annotations

import copy
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.errors import SpecError, UsageError
from fairlead.lab.table import Lab
from fairlead.spec.loader import Loaded, load, preset, preset_names, preset_text, read
from fairlead.spec.locate import dotted
from fairlead.spec.model import Spec
from fairlead.spec.resolve import OVERRIDES, leaves

FILE = """\
schema = 1
[[pool]]
name = "h"
size = "STANDARD_nd96ISR_h200_V5"
nodes = "h[1-2]"
[fabric]
link = "infiniband"
rdma = "ib"
[access]
via = "ssh"
fanout = 5
"""


def write(path: Path, text: str = FILE) -> Path:
    path.write_text(text)
    return path


def origins(loaded: Loaded) -> dict[str, str]:
    return {dotted(path): str(origin) for path, origin in loaded.origins.items()}


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=r"there is no cluster file cluster\.toml") as caught:
        read(environ={})
    assert caught.value.hint == "fairlead init"
    write(tmp_path / "cluster.toml", FILE.replace('"h"', '"here"'))
    named = write(tmp_path / "named.toml", FILE.replace('"h"', '"named"'))
    flag = write(tmp_path / "flag.toml", FILE.replace('"h"', '"flag"'))
    env = {"FAIRLEAD_SPEC": str(named)}
    assert read(environ={}).spec.pools[0].name == "here"
    assert read(environ=env).spec.pools[0].name == "named"
    assert read(flag, environ=env).spec.pools[0].name == "flag"
    assert read(environ={"FAIRLEAD_SPEC": ""}).file == "cluster.toml"
    monkeypatch.setenv("FAIRLEAD_SPEC", str(named))
    assert load().pools[0].name == "named"


def test_the_lab_stands_in_only_where_no_file_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(environ={}, or_lab=True).file == "preset:lab"
    with pytest.raises(SpecError, match=r"there is no cluster file x\.toml"):
        read("x.toml", environ={}, or_lab=True)
    with pytest.raises(SpecError, match=r"there is no cluster file y\.toml"):
        read(environ={"FAIRLEAD_SPEC": "y.toml"}, or_lab=True)
    write(tmp_path / "cluster.toml")
    assert read(environ={}, or_lab=True).file == "cluster.toml"


def test_precedence_of_one_value(tmp_path: Path) -> None:
    path, flags, env = write(tmp_path / "c.toml"), {"access.fanout": 7}, {"FAIRLEAD_FANOUT": "6"}
    without = write(tmp_path / "d.toml", FILE.replace("fanout = 5\n", ""))
    found = [
        read(path, flags=flags, environ=env),
        read(path, flags={"access.fanout": None}, environ=env),
        read(path, environ={}),
        read(without, environ={}),
    ]
    assert [f.spec.access.fanout for f in found] == [7, 6, 5, 64]
    assert [origins(f)["access.fanout"] for f in found] == [
        "flag --fanout",
        "environment FAIRLEAD_FANOUT",
        f"{path}:11",
        "default",
    ]


@pytest.mark.parametrize("override", OVERRIDES, ids=lambda o: o.variable)
def test_every_override(tmp_path: Path, override: Any) -> None:
    given = {"access.via": "local", "access.user": "me", "access.fanout": 3, "access.timeout_s": 2.5, "runs.dir": "/r"}
    name = dotted(override.path)
    path = write(tmp_path / "c.toml")
    for loaded in (
        read(path, environ={override.variable: str(given[name])}),
        read(path, environ={}, flags={name: given[name]}),
    ):
        value: Any = loaded.spec
        for part in override.path:
            value = getattr(value, part)
        assert value == given[name]
    assert read(path, environ={}, flags={"runs.dir": Path("/r")}).spec.runs.dir == "/r"


def test_a_wrong_variable_is_named_and_the_file_is_still_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", FILE.replace("schema = 1", "schema = 2"))
    with pytest.raises(SpecError) as caught:
        read(path, environ={"FAIRLEAD_FANOUT": "many", "FAIRLEAD_VIA": "shs"})
    said = [(p.file, p.line, p.code) for p in caught.value.problems]
    assert said == [
        (str(path), 1, "spec/schema"),
        ("FAIRLEAD_VIA", 0, "spec/bad-choice"),
        ("FAIRLEAD_FANOUT", 0, "spec/wrong-type"),
    ]
    assert "FAIRLEAD_FANOUT: `fanout` must be a whole number, not the text 'many'" in str(caught.value)


def test_a_variable_does_not_hide_a_wrong_value_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "c.toml", FILE.replace("fanout = 5", "fanout = 0"))
    with pytest.raises(SpecError) as caught:
        read(path, environ={"FAIRLEAD_FANOUT": "3"})
    assert [(p.file, p.line, p.code) for p in caught.value.problems] == [(str(path), 11, "spec/out-of-range")]


def test_a_number_from_a_flag_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--fanout: `fanout` is 0; it must be at least 1"):
        read(write(tmp_path / "c.toml"), flags={"access.fanout": 0}, environ={})
    with pytest.raises(UsageError, match=r"no flag sets `access\.fnaout`"):
        read(write(tmp_path / "c.toml"), flags={"access.fnaout": 0}, environ={})


def test_the_vm_size_fills_in_and_says_where_from(tmp_path: Path) -> None:
    loaded = read(write(tmp_path / "c.toml"), environ={})
    pool = loaded.spec.pools[0]
    assert (pool.count, pool.gpus, pool.ports) == (2, 8, 8)
    source = "size Standard_ND96isr_H200_v5: Azure documentation, ND-H200-v5 series, 2025-09-02"
    assert origins(loaded)["pool[0].gpus"] == source
    assert origins(loaded)["pool[0].count"] == "derived from `nodes`"


def test_unknown_hardware_is_left_open(tmp_path: Path) -> None:
    text = FILE.replace("STANDARD_nd96ISR_h200_V5", "other")
    pool = read(write(tmp_path / "c.toml", text), environ={}).spec.pools[0]
    assert (pool.gpus, pool.ports) == (None, None)


def test_every_value_has_an_origin(tmp_path: Path) -> None:
    loaded = read(write(tmp_path / "c.toml"), environ={})
    assert [p for p, _ in leaves(loaded.spec)] == list(loaded.origins)
    in_file = {name: o for name, o in origins(loaded).items() if o.startswith(str(tmp_path))}
    assert {name: int(o.rsplit(":", 1)[1]) for name, o in in_file.items()} == {
        "schema": 1,
        "pool[0].name": 3,
        "pool[0].size": 4,
        "pool[0].nodes": 5,
        "fabric.link": 7,
        "fabric.rdma": 8,
        "access.via": 10,
        "access.fanout": 11,
    }


def test_a_lab_of_two_lines(tmp_path: Path) -> None:
    loaded = read(write(tmp_path / "c.toml", 'schema = 1\naccess.via = "lab"\n'), environ={})
    spec = loaded.spec
    assert spec.is_lab
    assert spec.nodes == NodeSet("n[0-3]")
    fabric = spec.fabric
    assert (fabric.planes, fabric.t0, fabric.t1, fabric.hosts_per_t0, fabric.rdma) == (4, 2, 2, 2, "mrc")
    assert (spec.pools[0].ports, spec.pools[0].python, spec.table("lab").name) == (4, sys.executable, "cluster")
    assert origins(loaded)["fabric.planes"] == "preset lab"
    assert origins(loaded)["pool[0].nodes"] == "preset lab"
    assert origins(loaded)["access.via"] == f"{tmp_path}/c.toml:2"


def test_what_a_lab_file_says_wins_over_the_preset(tmp_path: Path) -> None:
    text = 'schema = 1\n[access]\nvia = "lab"\n[fabric]\nplanes = 1\nt1 = 3\n[lab]\nname = "mine"\nrate_mbps = 10\n'
    spec = read(write(tmp_path / "c.toml", text), environ={}).spec
    assert (spec.fabric.planes, spec.fabric.t0, spec.fabric.t1, spec.pools[0].ports) == (1, 2, 3, 1)
    assert (spec.table(Lab).name, spec.table(Lab).uplink_rate_mbps) == ("mine", 10)


def test_only_via_makes_a_lab(tmp_path: Path) -> None:
    text = FILE + "[lab]\nrate_mbps = 10\n"
    assert not read(write(tmp_path / "c.toml", text), environ={}).spec.is_lab
    turned = read(
        write(tmp_path / "c.toml", FILE.replace("[[pool]]", "[[pool]]\npython = 'p'")),
        environ={},
        flags={"access.via": "lab"},
    )
    assert turned.spec.is_lab
    assert turned.spec.pools[0].python == "p"


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_good_and_quiet(name: str) -> None:
    loaded = preset(name, environ={})
    assert loaded.warnings == ()
    assert loaded.file == f"preset:{name}"
    assert loaded.text == preset_text(name)
    assert preset_text(name).startswith("# ")
    assert {str(o) for o in loaded.origins.values()} & {f"preset {name}"}
    assert all(p.gpus is not None and p.ports is not None for p in loaded.spec.pools)


def test_presets_cover_the_ways_of_access() -> None:
    assert {preset(n, environ={}).spec.access.via for n in preset_names()} == {"lab", "slurm", "ssh", "kubernetes"}


def test_unknown_preset() -> None:
    with pytest.raises(UsageError, match=r"no preset `nd-h10`; did you mean `nd-h100`\?"):
        preset("nd-h10")


def test_a_spec_survives_copies_and_pickle_with_its_tables(tmp_path: Path) -> None:
    spec = preset("lab", environ={}).spec
    for again in (copy.copy(spec), copy.deepcopy(spec), pickle.loads(pickle.dumps(spec))):
        assert again == spec
        assert again.table(Lab) == spec.table(Lab)
    by_hand = Spec(schema=1, access=spec.access)
    assert pickle.loads(pickle.dumps(by_hand)) == by_hand


def test_pool_of(tmp_path: Path) -> None:
    spec = read(write(tmp_path / "c.toml"), environ={}).spec
    found = spec.pool_of("h2")
    assert found is not None
    assert found.name == "h"
    assert spec.pool_of("h3") is None


# ---- a file that somebody else laid out ------------------------------------------------------------------------------


def test_a_cluster_file_that_others_may_write_is_read_only_if_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "cluster.toml")
    if os.geteuid() == 0:
        os.chown(path, 54321, 54321)
        with pytest.raises(SpecError, match=r"cluster\.toml is not read: it belongs to user 54321") as caught:
            read(environ={}, or_lab=True)
        assert caught.value.code == "spec/not-ours"
        assert caught.value.hint == "if it is as it should be, name it: -f cluster.toml"
        assert read("cluster.toml", environ={}).spec.access.fanout == 5
        assert read(environ={"FAIRLEAD_SPEC": "cluster.toml"}).spec.access.fanout == 5
    path.chmod(0o666)
    for named in (None, "cluster.toml"):
        with pytest.raises(SpecError, match="is not read") as caught:
            read(named, environ={})
        assert caught.value.code == "spec/not-ours"


def test_a_pipe_that_nobody_named_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("cluster.toml")
    with pytest.raises(SpecError, match="not a regular file"):
        read(environ={})
