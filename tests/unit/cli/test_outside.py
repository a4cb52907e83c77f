"""What comes from outside drives no terminal in any room: each verb that shows it, as text and as JSON.

MARKS are what terminals obey (ECMA-48: ESC, CSI also as one 8-bit control, OSC, BEL, BS, CR) and what turns the
direction of reading (Unicode UAX 9). `evil` says that the text around them was shown.
"""

from __future__ import annotations

import json
import os
import re
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from fairlead.records.runs import RunFolder
from fairlead.watch.onnode.chain import Chain
from support.served import model

MARKS = "\x1b[2J\x1b]0;x\x07\x9b2J\u202e\u2066\r\b\x7f"
EVIL = f"evil{MARKS}evil"
NAME = EVIL.encode("utf-8")
FORBIDDEN = frozenset(MARKS) - frozenset("[2J]0;x")


def harmless(fairlead, *words, reads="evil", faces=("-v", "--json")):
    """The faces of a verb, without its own colours: no mark, and what was planted is there."""
    for face in faces:
        done = fairlead(*words, face)
        said = re.sub(r"\x1b\[(?:0|1|2|3[1-6])m", "", done.out + done.err)
        assert not FORBIDDEN & set(said), ascii(said)
        assert reads in said, (words, ascii(said))
        assert "this is a bug" not in said, ascii(said)
        if face == "--json":
            assert done.document["exit"] == done.status


@pytest.fixture(autouse=True)
def colours(own_folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")


@pytest.mark.requires("chdb")
def test_logs_lines_names_of_files_and_of_nodes(fairlead, tmp_path):
    place = tmp_path / "logs" / os.fsdecode(NAME)
    place.mkdir(parents=True)
    (place / os.fsdecode(NAME + b".log")).write_bytes(
        b"2026-03-02T10:00:00Z %s app: %s\n" % (NAME, NAME) + f"[  12.5] NVRM: Xid (PCI:{EVIL}): 79, {EVIL}\n".encode()
    )
    (place / "pipe.gz").write_bytes(b"\x1f\x8b" + NAME)
    store = ["--store", tmp_path / "store"]
    harmless(fairlead, "logs", "import", *store, "--by-folder", tmp_path / "logs", reads="", faces=("-v",))
    harmless(fairlead, "logs", "query", *store, "Logs | project Computer, FilePath, RawData")
    text = ("-v",)
    harmless(fairlead, "logs", "query", *store, "--format", "csv", "Logs | project Computer, RawData", faces=text)
    harmless(fairlead, "logs", "query", *store, f"Logs | where {EVIL} == 1", faces=text)
    harmless(fairlead, "logs", "diagnose", *store, EVIL, faces=text)
    harmless(fairlead, "logs", "import", *store, tmp_path / os.fsdecode(NAME), faces=text)


def test_queries_columns_values_and_mistakes(fairlead, tmp_path):
    text = EVIL.replace("\r", "")
    harmless(fairlead, "logs", "query", f"print ['{text}'] = '{text}', d = dynamic({json.dumps({EVIL: [EVIL]})})")
    harmless(fairlead, "logs", "query", f"print {EVIL}")
    harmless(fairlead, "logs", "query", f"datatable(a:string)['{text}'] | where a == nothing('{text}')")
    (tmp_path / "q.kql").write_text(f"print x = '{text}'\n\nprint {EVIL}\n", encoding="utf-8")
    harmless(fairlead, "logs", "query", "--file", tmp_path / "q.kql")


def test_weights_names_of_files_and_manifests(fairlead, tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    (place / os.fsdecode(NAME)).write_bytes(b"x")
    harmless(fairlead, "weights", "ls", place)
    harmless(fairlead, "weights", "ls", tmp_path / EVIL)
    harmless(fairlead, "weights", "pull", place, tmp_path / EVIL / "to", reads="")
    (place / "fairlead.manifest.json").write_text(json.dumps({EVIL: EVIL, "files": [{"path": EVIL, EVIL: 1}]}))
    harmless(fairlead, "weights", "ls", place, reads="")


def test_weights_an_origin_that_answers_with_marks(fairlead, tmp_path):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.wfile.write(
                f"HTTP/1.1 500 {EVIL}\n".encode().replace(b"\r", b"") + b"Server: " + NAME + b"\r\n\r\n" + NAME
            )

        do_HEAD = do_GET  # noqa: N815 - as http.server names it

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        harmless(fairlead, "weights", "ls", f"http://127.0.0.1:{server.server_port}/evil", reads="evil")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_serve_bundles_of_others_and_manifests(fairlead, tmp_path):
    place = model(tmp_path / "served")
    (place / os.fsdecode(NAME)).write_bytes(b"x")
    (place / "config.json").write_text(json.dumps({"model_type": EVIL, "architectures": [EVIL], "_name_or_path": EVIL}))
    harmless(fairlead, "serve", "bundle", place, tmp_path / "b", "--unsigned", reads="")
    harmless(fairlead, "serve", "run", place, "--dry-run", reads="")
    bundle = tmp_path / "theirs"
    bundle.mkdir()
    for said in ({"schema": EVIL}, {"schema": "fairlead.bundle/1", "files": [{"path": EVIL}], EVIL: EVIL}):
        (bundle / "fairlead-bundle.json").write_text(json.dumps(said))
        harmless(fairlead, "serve", "verify", bundle, reads="")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": EVIL, "annotations": {EVIL: EVIL}},
           "spec": {"containers": [{"name": EVIL, "image": f"docker.io/{EVIL}",
                                    "env": [{"name": EVIL, "value": EVIL}]}]}}  # fmt: skip
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    harmless(fairlead, "serve", "verify", "--manifests", tmp_path / "pod.json")
    harmless(fairlead, "serve", "verify", tmp_path / EVIL)


def test_plan_lint_of_files_of_others(fairlead, tmp_path):
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": EVIL, "namespace": EVIL},
           "spec": {"template": {"spec": {"containers": [
               {"name": EVIL, "image": EVIL,
                "resources": {"limits": {"nvidia.com/gpu": EVIL, EVIL: 3}}}]}}}}  # fmt: skip
    folder = tmp_path / os.fsdecode(NAME)
    folder.mkdir()
    (folder / "job.yaml").write_text(json.dumps(job))
    (folder / "slurm.conf").write_text(f"NodeName={EVIL} Gres=gpu:{EVIL}\nEvil{MARKS}={EVIL}\n".replace("\r", ""))
    (folder / "broken.yaml").write_text(f"a: [{EVIL}\n  - {MARKS}".replace("\r", ""))
    harmless(fairlead, "plan", "--lint", folder)


def test_watch_records_of_a_node(fairlead, tmp_path):
    place = tmp_path / os.fsdecode(NAME)
    place.mkdir()
    chain = Chain(str(place))
    chain.append([{"kind": EVIL, "t": 1, EVIL: EVIL}])
    chain.close()
    harmless(fairlead, "watch", "verify", place)
    (file,) = [path for path in place.iterdir() if path.suffix == ".jsonl"]
    file.write_bytes(file.read_bytes() + b'{"' + NAME + b'": 1}\n')
    harmless(fairlead, "watch", "verify", place)


@pytest.mark.slow
def test_train_settings_and_models_of_others(fairlead, tmp_path):
    pytest.importorskip("torch", reason="needs torch: extra `train`")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/config.json").write_text(json.dumps({"model_type": EVIL, "architectures": [EVIL]}))
    quoted = json.dumps(EVIL)
    (tmp_path / "keys.toml").write_text(f"{quoted} = {quoted}\n[model]\n{quoted} = 1\n")
    (tmp_path / "model.toml").write_text('schema = 1\nmodel = "m"\n[data]\ntokens = "x.npy"\n')
    for name, faces in (("keys.toml", ("-v", "--json")), (os.fsdecode(NAME), ("-v",)), ("model.toml", ("-v",))):
        harmless(fairlead, "train", "estimate", tmp_path / name, reads="", faces=faces)


def test_cluster_files_names_of_nodes_codes_and_flags(fairlead, tmp_path):
    quoted = json.dumps(EVIL)
    (tmp_path / "c.toml").write_text(f"[cluster]\nname = {quoted}\nnodes = {quoted}\n[{quoted}]\n{quoted} = {quoted}\n")
    harmless(fairlead, "check", "-f", tmp_path / "c.toml")
    harmless(fairlead, "plan", "-f", tmp_path / "c.toml")
    harmless(fairlead, "explain", EVIL)
    harmless(fairlead, "fabric", "ping", "-f", tmp_path / "c.toml", "-w", EVIL)
    harmless(fairlead, "show", EVIL)
    harmless(fairlead, "check", f"--{EVIL}", reads="evil")


def test_runs_of_others_and_what_their_nodes_said(fairlead, tmp_path):
    folder = RunFolder.create(tmp_path / "runs", "exec", ["fairlead", "exec", "--", EVIL])
    result = {"schema": "fairlead.exec/1", "run": folder.info.id, "verdict": "fail", "exit": 3, EVIL: EVIL,
              "results": [{"node": EVIL, "stdout": EVIL, "stderr": EVIL, "error": EVIL}]}  # fmt: skip
    folder.write("result.json", json.dumps(result))
    harmless(fairlead, "show", folder.info.id)
    harmless(fairlead, "show", "--all", reads="")
    harmless(fairlead, "diff", folder.info.id, folder.info.id, reads="")
    harmless(fairlead, "rejudge", folder.info.id, reads="")


def test_kernel_logs_and_trees_of_a_node(fairlead, tmp_path):
    log = tmp_path / "console.txt"
    log.write_text(
        f"[    1.0] hv_netvsc {EVIL}: VF unregistering: {EVIL}\n[    2.0] NVRM: Xid (PCI:0000:01:00): 79, {EVIL}\n"
    )
    harmless(fairlead, "audit", "--kernel-log", log, reads="")
    tree = tmp_path / "trees" / "n1"
    for path, text in {
        "etc/hostname": EVIL, "etc/os-release": f"ID={EVIL}\nPRETTY_NAME={EVIL}\n", "proc/version": EVIL,
        "dev/kmsg": f"3,1,1000000,-;NVRM: Xid (PCI:0000:01:00): 79, name={EVIL}, GPU has fallen off.\n",
        f"sys/class/net/eth0{MARKS}/operstate": EVIL, "sys/class/infiniband/mlx5_0/ports/1/state": EVIL,
    }.items():  # fmt: skip
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    for verb in ("probe", "audit"):
        harmless(fairlead, verb, "--root", tree, "--size", "Standard_ND96isr_H100_v5", reads="", faces=("-v",))
