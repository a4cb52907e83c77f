"""A bundle that was changed on its way is refused by what was changed."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fairlead.errors import UsageError
from fairlead.records.verdict import Verdict, aggregate
from fairlead.serve.bundle import make, planned
from fairlead.serve.model import look
from fairlead.serve.record import MANIFEST, SBOM, SIGNATURE, private_key, public_key
from fairlead.serve.verify import verify
from support.served import keys, model

LINUX = "linux/amd64"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A signed image and a signed folder, with their keys; each test takes a copy."""
    place = tmp_path_factory.mktemp("bundles")
    key, pub = keys(place)
    source = model(place / "m")
    for form in ("oci", "directory"):
        make(planned(look(source), source, place / form, form=form, platform=LINUX), key=private_key(key))
    return place, public_key(pub)


@pytest.fixture(params=["oci", "directory"])
def bundle(request, made, tmp_path):
    return Path(shutil.copytree(made[0] / request.param, tmp_path / "b"))


def found(bundle, made, platform=LINUX):
    _, findings = verify(bundle, key=made[1], platform=platform)
    return aggregate(f.verdict for f in findings), {f.code for f in findings if f.verdict is not Verdict.PASS}, findings


def weight(bundle):
    return max((p for p in bundle.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


def test_a_bundle_that_arrived_whole_passes(bundle, made):
    verdict, bad, findings = found(bundle, made)
    assert (verdict, bad) == (Verdict.PASS, set())
    assert {f.code for f in findings} == {"serve/signature", "serve/bundle"}


def test_one_flipped_bit_is_named(bundle, made):
    path = weight(bundle)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 4
    path.write_bytes(raw)
    verdict, bad, findings = found(bundle, made)
    assert (verdict, bad) == (Verdict.FAIL, {"serve/flipped"})
    assert findings[0].subject.name == path.relative_to(bundle).as_posix()


def test_a_file_that_is_missing_short_or_a_link_is_named(bundle, made, tmp_path):
    path = weight(bundle)
    raw = path.read_bytes()
    path.unlink()
    assert found(bundle, made)[:2] == (Verdict.FAIL, {"serve/missing"})
    path.write_bytes(raw[:-1])
    assert found(bundle, made)[:2] == (Verdict.FAIL, {"serve/flipped"})
    path.unlink()
    (tmp_path / "same").write_bytes(raw)
    path.symlink_to(tmp_path / "same")
    assert found(bundle, made)[:2] == (Verdict.FAIL, {"serve/flipped"})


def test_a_file_that_nobody_signed_is_named(bundle, made):
    (bundle / "model").mkdir(exist_ok=True)
    (bundle / "model" / "modeling_x.py").write_text("import os")
    assert found(bundle, made)[:2] == (Verdict.FAIL, {"serve/extra"})


def test_a_manifest_that_was_changed_is_refused_whoever_signs_it_anew(bundle, made, tmp_path):
    said = json.loads((bundle / MANIFEST).read_bytes())
    said["licence"] = "mit"
    (bundle / MANIFEST).write_text(json.dumps(said))
    assert found(bundle, made)[:2] == (Verdict.FAIL, {"serve/signature"})
    from fairlead.serve.record import sign

    key, _ = keys(tmp_path, "other")
    (bundle / SIGNATURE).write_bytes(sign((bundle / MANIFEST).read_bytes(), private_key(key)))
    verdict, bad, findings = found(bundle, made)
    assert (verdict, bad) == (Verdict.FAIL, {"serve/signature"})
    assert "another key" in findings[0].message


def test_without_a_signature_a_trusted_key_refuses_and_no_key_warns(bundle, made):
    (bundle / SIGNATURE).unlink()
    assert found(bundle, made)[:2] == (Verdict.FAIL, {"serve/unsigned"})
    _, findings = verify(bundle, platform=LINUX)
    assert [f.code for f in findings if f.verdict is Verdict.WARN] == ["serve/unsigned"]


def test_without_a_trusted_key_a_signature_is_only_a_warning(bundle):
    _, findings = verify(bundle, platform=LINUX)
    assert [f.code for f in findings if f.verdict is not Verdict.PASS] == ["serve/untrusted"]


@pytest.mark.parametrize("text", ["", "{}", "null", '{"key": "AA==", "signature": "AA=="}', "[" * 2000])
def test_a_signature_that_does_not_read_is_refused(bundle, made, text):
    (bundle / SIGNATURE).write_text(text)
    assert found(bundle, made)[:2] == (Verdict.FAIL, {"serve/signature"})


def test_a_newer_manifest_is_refused_as_such(bundle, made, tmp_path):
    """Signed by its maker, as a later fairlead would."""
    from fairlead.serve.record import sign

    (bundle / MANIFEST).write_text('{"schema": "fairlead.bundle/2", "parts": {}}')
    raw = (bundle / MANIFEST).read_bytes()
    (bundle / SIGNATURE).write_bytes(sign(raw, private_key(made[0] / "bundle.key")))
    verdict, bad, findings = found(bundle, made)
    assert (verdict, bad) == (Verdict.FAIL, {"serve/newer-manifest"})
    assert "fairlead.bundle/2" in findings[0].message


def test_an_image_for_other_machines_is_refused_and_a_folder_fits_all(made):
    assert found(made[0] / "oci", made, "linux/arm64")[:2] == (Verdict.FAIL, {"serve/other-architecture"})
    assert found(made[0] / "directory", made, "linux/arm64")[0] is Verdict.PASS


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "a/../b", "a\0b", ""])
def test_a_manifest_that_names_what_is_outside_is_refused(bundle, path):
    (bundle / SIGNATURE).unlink()
    said = json.loads((bundle / MANIFEST).read_bytes())
    said["stored"][0]["path"] = path
    (bundle / MANIFEST).write_text(json.dumps(said))
    _, findings = verify(bundle, platform=LINUX)
    assert [f.code for f in findings] == ["serve/not-a-bundle"]


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path):
    with pytest.raises(UsageError) as caught:
        verify(tmp_path, platform=LINUX)
    assert caught.value.code == "serve/not-a-bundle"


def test_openssl_verifies_the_signature_too(made, tmp_path):
    """By the form that README.md gives: the prefix, then the manifest."""
    bundle = made[0] / "oci"
    said = json.loads((bundle / SIGNATURE).read_bytes())
    (tmp_path / "sig").write_bytes(base64.b64decode(said["signature"]))
    signed = b"fairlead bundle manifest\0" + (bundle / MANIFEST).read_bytes()
    words = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", made[0] / "bundle.pub", "-rawin", "-in"]
    for raw, status in ((signed, 0), (signed + b" ", 1)):
        (tmp_path / "raw").write_bytes(raw)
        done = subprocess.run([*words, tmp_path / "raw", "-sigfile", tmp_path / "sig"], capture_output=True)
        assert done.returncode == status


def test_keys_that_are_none_or_that_others_may_read_are_refused(tmp_path):
    key, pub = keys(tmp_path)
    for path, load in ((pub, private_key), (key, public_key), (tmp_path / "no", private_key)):
        with pytest.raises(UsageError) as caught:
            load(path)
        assert caught.value.code == "serve/key"
    key.chmod(0o644)
    with pytest.raises(UsageError, match="others may read"):
        private_key(key)
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed448", "-out", key], check=True, capture_output=True)
    key.chmod(0o600)
    with pytest.raises(UsageError, match="Ed25519"):
        private_key(key)


def test_everything_in_a_bundle_is_signed(made):
    said = json.loads((made[0] / "oci" / MANIFEST).read_bytes())
    there = {p.relative_to(made[0] / "oci").as_posix() for p in (made[0] / "oci").rglob("*") if p.is_file()}
    assert {s["path"] for s in said["stored"]} == there - {MANIFEST, SIGNATURE}
    assert SBOM in there
