"""`fairlead.weights` as a program uses it: no command line, no run folder."""

from __future__ import annotations

import sys

import pytest

from fairlead import spec, weights
from fairlead.cluster import connect
from fairlead.errors import FairleadError
from fairlead.records.verdict import Verdict

pytestmark = pytest.mark.real


@pytest.fixture
def source(tmp_path):
    made = tmp_path / "source"
    (made / "deep").mkdir(parents=True)
    (made / "config.json").write_bytes(b"{}")
    (made / "deep" / "x.bin").write_bytes(bytes(range(256)) * 4096)
    return made


def test_what_lies_there_is_pulled_and_is_found_damaged_later(source, tmp_path):
    dest = tmp_path / "dest"
    assert [(o.path, o.size) for o in weights.ls(str(source))] == [("config.json", 2), ("deep/x.bin", 1 << 20)]
    seen = []
    report = weights.pull(str(source), dest, progress=lambda *what: seen.append(what))
    assert report.verdict is Verdict.PASS
    assert (report.totals["bytes"], report.totals["origin_bytes"]) == ((1 << 20) + 2, (1 << 20) + 2)
    assert (dest / "deep" / "x.bin").read_bytes() == (source / "deep" / "x.bin").read_bytes()
    assert seen

    file = tmp_path / "cluster.toml"
    file.write_text(
        'schema = 1\n[cluster]\nname = "here"\n[access]\nvia = "local"\n[fabric]\nlink = "ethernet"\nrdma = "none"\n'
        f'[[pool]]\nname = "a"\nsize = "other"\nnodes = "localhost"\npython = "{sys.executable}"\n'
    )
    here = spec.load(file)
    with connect(here) as cluster:
        again = weights.plan(cluster, here, str(source), str(dest))
        assert again.outcome.left_bytes == (0, 0)
        assert [f.code for f in weights.verify(cluster, here, str(dest))] == ["weights/verified"]
        (dest / "deep" / "x.bin").chmod(0o600)
        (dest / "deep" / "x.bin").write_bytes(b"others")
        (damaged,) = weights.verify(cluster, here, str(dest))
        assert (damaged.code, damaged.verdict) == ("weights/damaged", Verdict.FAIL)
        mended = weights.spread(cluster, here, weights.choose(str(source), include=["*.bin"]), str(dest))
        assert mended.totals["files"] == 1
        with pytest.raises(FairleadError, match="no absolute path"):
            weights.spread(cluster, here, str(source), "dest")


def test_what_is_not_there_is_said_before_anything_is_done(source, tmp_path):
    for wrong in (str(tmp_path / "nowhere"), "nothing://at-all"):
        with pytest.raises(FairleadError):
            weights.pull(wrong, tmp_path / "dest")
    with pytest.raises(FairleadError, match="exclude each other"):
        weights.pull(str(source), tmp_path / "dest", how=weights.How(shard_bytes=1 << 20, file_shards=3))
    assert not (tmp_path / "dest").exists()
