"""Wheels of an engine in a bundle. Whether a folder of them installs is asked of pip too, which is who will say so."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("packaging", reason="needs packaging: extra `serve`")

from fairlead.cli.app import run
from fairlead.errors import FairleadError
from fairlead.serve.record import MANIFEST, SBOM
from fairlead.serve.wheels import lacking, look_wheels, refuse_wheels
from support.served import model

LINUX = "linux/amd64"
ANY = "py3-none-any"
ENGINE = {"engine-1.0": ["middle[fast]>=2", "absent; python_version < '3'"], "middle-2.1": ["small; extra == 'fast'"]}
WHOLE = {**ENGINE, "small-0.3": []}


def wheel(folder, name, needs=(), tag=ANY, *, licence="MIT"):
    """A wheel of one module, by packaging.python.org, "Binary distribution format"."""
    folder.mkdir(exist_ok=True)
    project, _, version = name.partition("-")
    info = f"{project}-{version}.dist-info"
    head = f"Metadata-Version: 2.4\nName: {project}\nVersion: {version}\nLicense-Expression: {licence}\n"
    head += "Provides-Extra: fast\n" + "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(folder / f"{project}-{version}-{tag}.whl", "w") as archive:
        archive.writestr(f"{project}.py", f"version = {version!r}\n")
        archive.writestr(f"{info}/METADATA", head)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return folder


def wheels(folder, said):
    folder.mkdir()
    for name, needs in said.items():
        wheel(folder, name, needs)
    return folder


CASES = {
    "whole": (WHOLE, ""),
    "a requirement of an extra is missing": (ENGINE, "middle needs small"),
    "an old version": (
        {**ENGINE, "small-0.3": [], "middle-2.1": ["small>=1; extra == 'fast'"]},
        "middle needs small>=1",
    ),
    "the other one is missing": ({"engine-1.0": ["middle"]}, "engine needs middle"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_no_wheel_fulfils_is_named(tmp_path, case):
    said, wanted = CASES[case]
    assert lacking(look_wheels(wheels(tmp_path / "w", said)).wheels) == ([wanted] if wanted else [])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_pip_says_the_same(tmp_path, case):
    said, wanted = CASES[case]
    folder = wheels(tmp_path / "w", said)
    words = ["--dry-run", "--no-index", "--ignore-installed", "--find-links", folder, "engine"]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0) == (not wanted), done.stderr


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        (ANY, True),
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp311-abi3-manylinux2014_x86_64.manylinux_2_17_x86_64", True),
        ("cp311-cp311-musllinux_1_2_x86_64", True),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-macosx_11_0_x86_64", False),
        ("cp311-cp311-win_amd64", False),
    ],
)
def test_a_wheel_for_other_machines_is_refused(tmp_path, tag, fits):
    found = look_wheels(wheel(tmp_path / "w", "engine-1.0", tag=tag))
    if fits:
        refuse_wheels(found, tmp_path / "w", LINUX)
    else:
        with pytest.raises(FairleadError, match="other machines"):
            refuse_wheels(found, tmp_path / "w", LINUX)


def _source(folder):
    (folder / "engine-1.0.tar.gz").write_bytes(b"")


def _truncated(folder):
    (path,) = folder.glob("small*")
    path.write_bytes(path.read_bytes()[:200])


def _renamed(folder):
    (path,) = folder.glob("small*")
    path.rename(folder / "large-0.3-py3-none-any.whl")


def _nameless(folder):
    (path,) = folder.glob("small*")
    path.rename(folder / "small.whl")


def _link(folder):
    (folder / "more-1-py3-none-any.whl").symlink_to(next(folder.glob("small*")))


@pytest.mark.parametrize("spoil", [_source, _truncated, _renamed, _nameless, _link])
def test_what_pip_would_not_install_there_is_refused(tmp_path, spoil, capsys):
    folder = wheels(tmp_path / "w", WHOLE)
    spoil(folder)
    words = ["--form", "directory", "--wheels", str(folder), "--unsigned", "--json"]
    assert run(["serve", "bundle", str(model(tmp_path / "m")), str(tmp_path / "b"), *words]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "serve/wheels"
    assert not (tmp_path / "b").exists()


def test_an_image_takes_no_wheels(tmp_path):
    folder = wheels(tmp_path / "w", WHOLE)
    assert run(["serve", "bundle", str(model(tmp_path / "m")), str(tmp_path / "b"), "--wheels", str(folder)]) == 2


@pytest.fixture
def bundle(tmp_path):
    folder = wheel(wheels(tmp_path / "w", WHOLE), "native-1.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    words = ["--form", "directory", "--wheels", str(folder), "--unsigned", "--platform", LINUX]
    assert run(["serve", "bundle", str(model(tmp_path / "m")), str(tmp_path / "b"), *words]) == 0
    return tmp_path / "b"


def test_wheels_are_signed_listed_and_for_their_machines(bundle):
    said = json.loads((bundle / MANIFEST).read_text())
    assert len(said["wheels"]) == 4
    assert {f"wheels/{name}" for name in said["wheels"]} == {
        row["path"] for row in said["stored"] if row["path"].startswith("wheels/")
    }
    assert not [row for row in said["files"] if row["path"].endswith(".whl")]
    rows = [row for row in json.loads((bundle / SBOM).read_text())["components"] if row["type"] == "library"]
    assert {row["purl"] for row in rows} >= {"pkg:pypi/engine@1.0", "pkg:pypi/middle@2.1"}
    assert rows[0]["licenses"] == [{"expression": "MIT"}]
    assert run(["serve", "verify", str(bundle), "--platform", LINUX]) == 0
    assert run(["serve", "verify", str(bundle), "--platform", "linux/arm64"]) == 3
    path = bundle / "wheels" / said["wheels"][0]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert run(["serve", "verify", str(bundle), "--platform", LINUX]) == 3


@pytest.mark.slow
def test_the_engine_is_installed_from_the_bundle_alone(bundle, tmp_path):
    words = [
        "--no-index",
        "--ignore-installed",
        "--find-links",
        bundle / "wheels",
        "--target",
        tmp_path / "env",
        "engine",
    ]
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True, capture_output=True, timeout=120)
    assert {path.stem for path in (tmp_path / "env").glob("*.py")} == {"engine", "middle", "small"}
