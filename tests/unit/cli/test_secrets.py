"""More than fifty planted secrets through the rooms: what a run leaves, shown or packed for a bug report, holds none.

The files are those that rooms write into a folder, each in its own form: argv of the process, records of commands,
an engine's log, the witness of an offline proof, lines of a training run, a cluster file, a table for people.
"""

from __future__ import annotations

import io
import json
import tarfile

import pytest

from fairlead.base.confidential import HIDDEN
from fairlead.records.runs import RunFolder
from support.secret_makes import PLANTED

LEFT = {make: each for make, each in PLANTED.items() if make != "a key cut short"}  # which takes all behind it along
TEXTS = [text for text, _ in LEFT.values()]
SAS = "sv=2022-11-02&se=2026-12-01&sr=c&sp=rl&sig=Ab%2Fq9zzz"
SIGNED = "X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F2026&X-Amz-Signature=5e0a9f5e0a9f"


def survivors(text):
    return [make for make, (_, secret) in LEFT.items() if secret in text]


def left_by(verb, folder):
    """What a run of a room leaves."""
    made = RunFolder.create(folder, verb, ["fairlead", verb, "--", *TEXTS])
    lines = [{"time": "2026-11-23T06:00:00Z", "text": text, "argv": [verb, text]} for text in TEXTS]
    made.write("log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    made.write("commands.jsonl", "".join(json.dumps({"node": "n1", "argv": ["sh", "-c", t]}) + "\n" for t in TEXTS))
    made.write("engine.log", "\n".join(TEXTS) + "\n")
    made.write("proof.json", json.dumps({"calls": [{"by": [{"pid": 7, "command": text}]} for text in TEXTS]}))
    made.write("metrics.jsonl", "".join(json.dumps({"step": i, "said": text}) + "\n" for i, text in enumerate(TEXTS)))
    made.write("spec.toml", "".join(f"said = {json.dumps(text)}\n" for text in TEXTS))
    made.write("summary.txt", "".join(f"n1  {text}\n" for text in TEXTS))
    body = {"schema": f"fairlead.{verb}/1", "run": made.info.id, "verdict": "fail", "exit": 3, "findings": [],
            "objects": [{"path": text, "from": text} for text in TEXTS], "script": "\n".join(TEXTS)}  # fmt: skip
    made.finish(body, verdict="fail", exit_code=3)
    return made


def test_what_a_run_of_a_room_leaves_is_packed_and_shown_without_secrets(fairlead, own_folder):
    made = left_by("serve", own_folder / "runs")
    for path in made.path.iterdir():
        if path.suffix not in (".json", ".jsonl", ".toml"):
            assert len(survivors(path.read_text())) == len(LEFT) >= 50, "planted, so that it can be missed"
    pack = own_folder / "bug.tar.gz"
    shown = fairlead("show", made.info.id, "--redact", "--pack", pack)
    assert survivors(shown.out + shown.err) == []
    assert pack.stat().st_mode & 0o777 == 0o600
    with tarfile.open(fileobj=io.BytesIO(pack.read_bytes())) as tar:
        names = [member.name for member in tar.getmembers()]
        for member in tar.getmembers():
            text = tar.extractfile(member).read().decode()
            assert survivors(text) == [], member.name
            assert HIDDEN in text, member.name
    assert len(names) >= 9
    document = fairlead("show", made.info.id, "--redact", "--json")
    assert survivors(document.out + document.err) == []
    assert (made.path.stat().st_mode & 0o777, {p.stat().st_mode & 0o077 for p in made.path.iterdir()}) == (0o700, {0})


@pytest.mark.parametrize("face", ["-v", "--json"])
@pytest.mark.parametrize(
    ("source", "secret"),
    [
        (f"http://127.0.0.1:9/model.bin?{SAS}", "Ab%2Fq9zzz"),
        (f"http://127.0.0.1:9/model.bin?{SIGNED}", "5e0a9f5e0a9f"),
        ("http://ann:hunter2@127.0.0.1:9/model.bin", "hunter2"),
    ],
)
def test_an_address_that_is_a_secret_is_told_without_it(fairlead, monkeypatch, source, secret, face):
    monkeypatch.setenv("FAIRLEAD_WEIGHTS_TOKEN", "t0p-secret-of-the-origin")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    for words in (("ls", source), ("plan", source, "/tmp/never"), ("script", source, "/tmp/never", "--run", "true")):
        done = fairlead("weights", *words, face)
        assert done.status != 0
        for each in (secret, "t0p-secret", "hf_abcdef"):
            assert each not in done.out + done.err, words


def test_a_batch_script_is_no_place_for_a_secret(fairlead, own_folder):
    for source, run in ((f"az://models/m?{SAS}", ""), (f"https://b.s3.amazonaws.com/k?{SIGNED}", ""),
                        ("az://models/m", "env HF_TOKEN=hunter2 python train.py"),
                        ("az://models/m", "python train.py --api-key hunter2")):  # fmt: skip
        done = fairlead("weights", "script", source, "/nvme/m", "--run", run, "--write", own_folder / "job.sh")
        assert done.status == 2
        assert "a script is no place for a secret" in done.err
        assert not (own_folder / "job.sh").exists()
        assert "hunter2" not in done.out + done.err


def test_keys_of_an_endpoint_are_in_no_face_and_no_command(fairlead, own_folder):
    (own_folder / "keys").write_text("k3y-of-ann-hunter2-hunter2-hunter2\n")
    for face in ("-v", "--json"):
        done = fairlead("serve", "run", own_folder / "nothing", "--api-keys", own_folder / "keys", "--dry-run", face)
        assert "hunter2" not in done.out + done.err


def test_a_manifest_with_a_key_is_told_without_it(fairlead, own_folder):
    env = [{"name": "NGC_API_KEY", "value": "abcdefghhunter2"}, {"name": "X", "value": "hf_abcdefghijklmnopqrst"}]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
           "spec": {"containers": [{"name": "c", "image": "site.local/x@sha256:" + "a" * 64, "env": env}]}}  # fmt: skip
    (own_folder / "pod.json").write_text(json.dumps(pod))
    for face in ("-v", "--json"):
        done = fairlead("serve", "verify", "--manifests", own_folder / "pod.json", face)
        assert "plan/key-in-manifest" in done.out
        assert "hunter2" not in done.out + done.err
        assert "hf_abcdef" not in done.out + done.err
