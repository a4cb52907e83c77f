"""The program as nodes run it: its own process, a tree of sysfs, junk in it, restarts, kills; what it keeps."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from fairlead.watch.onnode.chain import check
from fairlead.watch.program import look_program, watch_source
from support import promtext
from support.watching import DOWN, Running, hca, is_root, settings


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "node"
    for i in range(8):
        hca(root, f"mlx5_{i}")
    (root / "absent").write_text("/sys/class/dmi/id/chassis_asset_tag\n")
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_text("")
    return root


@pytest.fixture
def watch(tmp_path, tree):
    with Running(tmp_path / "its", root=str(tree)) as running:
        yield running


def codes(now):
    return sorted((f["code"].removeprefix("watch/"), f["part"], f["verdict"]) for f in now["findings"])


def test_it_is_python_3_9_and_the_standard_library_alone():
    for source in (watch_source(), look_program().source.decode()):
        tree = ast.parse(source, feature_version=(3, 9))
        imported = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module])
        }
        assert imported <= sys.stdlib_module_names, imported - sys.stdlib_module_names
        # what 3.9 would stumble over at run time: unions outside of annotations, match, strict zips
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Match)]
        assert "strict=" not in source


def test_events_of_other_machines_are_not_told(tmp_path, tree):
    """The service tells each VM of a scale set the events of all (azure/virtual-machines/linux/scheduled-events)."""
    said = [
        {"EventId": f"E-{vm}", "EventType": "Reboot", "EventStatus": "Scheduled", "Resources": [f"nsgvmss_{vm}"]}
        for vm in (84, 85)
    ]
    (tree / "http").mkdir()
    compute = tree / "http/169.254.169.254_metadata"
    compute.write_text(json.dumps({"name": "nsgvmss_85", "vmScaleSetName": "nsgvmss"}))
    (tree / "http/169.254.169.254_scheduledevents").write_text(json.dumps({"Events": said}))
    with Running(tmp_path / "named", root=str(tree)) as watch:
        now = watch.until(lambda now: now["findings"])
        assert codes(now) == [("scheduled-event", "E-85", "warn")]
    compute.write_text("{}")
    with Running(tmp_path / "nameless", root=str(tree)) as watch:
        now = watch.until(lambda now: now["findings"])
        assert codes(now) == [("scheduled-event", "E-84", "unknown"), ("scheduled-event", "E-85", "unknown")]


def test_it_sees_a_port_go_down_and_come_back_and_keeps_both(watch, tree):
    watch.until(lambda now: len(now["ports"]) == 8)
    hca(tree, "mlx5_3", state=DOWN, phys_state="3: Disabled")
    watch.until(lambda now: codes(now) == [("port-down", "mlx5_3/1", "fail")])
    hca(tree, "mlx5_3")
    watch.until(lambda now: not codes(now))
    assert watch.end() == 0
    kinds = [(r["kind"], r.get("part")) for r in watch.records()]
    assert kinds[0] == ("start", None)
    assert ("finding", "mlx5_3/1") in kinds
    assert ("cleared", "mlx5_3/1") in kinds
    assert kinds[-1] == ("stop", None)
    assert "broken" not in check(str(watch.folder))


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        ("counters/port_rcv_data", b"\xff\xfe\x00junk"),
        ("counters/port_rcv_data", b""),
        ("counters/port_rcv_data", b"-7\n"),
        ("counters/port_rcv_data", b"99999999999999999999999999\n"),
        ("counters/symbol_error", b"12"),
        ("state", b""),
        ("state", b"\x1b[2J: ACTIVE"),
        ("rate", b"fast\n"),
        ("phys_state", b"\x00" * 5000),
    ],
)
def test_junk_in_a_file_is_unknown_or_nothing_and_never_an_accusation(watch, tree, name, junk):
    watch.until(lambda now: len(now["ports"]) == 8)
    (tree / "sys/class/infiniband/mlx5_3/ports/1" / name).write_bytes(junk)
    watch.after()
    now = watch.after(0.8)
    assert {verdict for _, _, verdict in codes(now)} <= {"unknown"}
    assert watch.process.poll() is None


def test_a_tree_that_is_half_taken_away_is_no_traceback(watch, tree):
    watch.until(lambda now: len(now["ports"]) == 8)
    one = tree / "sys/class/infiniband/mlx5_2/ports/1"
    for path in ("counters/port_xmit_data", "state", "rate"):
        (one / path).unlink()
    (tree / "sys/class/infiniband/mlx5_4").rename(tree / "sys/class/infiniband/mlx5_40")
    now = watch.until(lambda now: "mlx5_40/1" in now["ports"])
    now = watch.after(0.8)
    told = codes(now)
    assert ("port-down", "mlx5_4/1", "fail") in told, "a device that is renamed is gone by its name"
    assert ("blind", "mlx5_2/1 state", "unknown") in told
    assert not [t for t in told if t[0] == "port-down" and t[1] == "mlx5_2/1"]


def test_killed_outright_it_goes_on_where_it_was_and_knows_what_a_link_ran_at(watch, tree):
    watch.until(lambda now: len(now["ports"]) == 8)
    watch.after()
    watch.end(signal.SIGKILL)
    hca(tree, "mlx5_5", rate="200 Gb/sec (2X NDR)")
    watch.start()
    watch.until(lambda now: codes(now) == [("link-slower", "mlx5_5/1", "fail")])
    watch.end()
    assert [r["kind"] for r in watch.records()].count("start") == 2
    assert "broken" not in check(str(watch.folder))


def test_a_torn_record_is_cut_off_and_told_at_the_next_start(watch):
    watch.until(lambda now: now["ports"])
    watch.end(signal.SIGKILL)
    with (watch.folder / "audit.jsonl").open("ab") as file:
        file.write(b'{"n":1,"prev":"00')
    assert check(str(watch.folder))["torn"] == 17
    watch.start()
    watch.until(lambda now: now["head"][0] >= 1)
    watch.end()
    assert [r["torn"] for r in watch.records() if "torn" in r] == [17]
    assert "broken" not in check(str(watch.folder))


def test_a_revocation_replayed_from_a_log_is_told_and_its_return_ends_it(watch, tree):
    """The trace of learn.microsoft.com (how Accelerated Networking works), line by line."""
    nic = "hv_netvsc 000d3af5-76bd-000d-3af5-76bd000d3af5 eth0: "
    gone = (
        f"6,9,8090127,-;{nic}Data path switched to VF: enP53091s1np0\n"
        f"6,14,8160911509,-;{nic}Data path switched from VF: enP53091s1np0\n"
        f"6,15,8160912120,-;{nic}VF unregistering: enP53091s1np0\n"
    )
    watch.end()
    (tree / "dev/kmsg").write_text(gone)
    watch.start()
    now = watch.until(lambda now: now["windows"])
    assert [(w["nic"], w["start_s"]) for w in now["windows"]] == [("eth0", 8160.911509)]
    watch.end()
    (tree / "dev/kmsg").write_text(gone + f"6,24,8226267380,-;{nic}Data path switched to VF: enP53091s1np0\n")
    watch.start()
    watch.until(lambda now: now["windows"] and "end_s" in now["windows"][0] and not codes(now))
    watch.end()
    told = [r for r in watch.records() if r["kind"] in ("vf-gone", "vf-back")]
    assert [(r["kind"], r["nic"]) for r in told] == [("vf-gone", "eth0"), ("vf-back", "eth0")]
    assert told[1]["seconds"] == pytest.approx(65.356, abs=0.001)


def test_there_is_one_of_it(watch):
    watch.until(lambda now: now["ports"])
    second = subprocess.run(watch.words, capture_output=True, text=True, timeout=60)
    assert (second.returncode, second.stderr) == (2, "fairlead-watch: another watch runs here\n")


@pytest.mark.parametrize("words", [[], ["{"], ["[]"], ["{}"], ["/no/such/file"], ["/dev/zero"]])
def test_settings_that_are_none_are_one_sentence(tmp_path, words):
    program = tmp_path / "watch.py"
    program.write_text(watch_source())
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "FAIRLEAD_NODE": tmp_path.name}
    done = subprocess.run([sys.executable, "-I", "-S", program, *words], capture_output=True, text=True, env=env)
    assert done.returncode == 2
    assert re.fullmatch(r"fairlead-watch: [^\n]+\n", done.stderr)


def test_a_folder_of_somebody_else_is_not_used(tmp_path):
    loose = tmp_path / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    running = Running(tmp_path / "its", folder=str(loose))
    done = subprocess.run(running.words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "everybody may write to it" in done.stderr
    assert not list(loose.iterdir())


def test_its_text_file_is_one_that_the_collector_takes_and_its_own_files_are_private(tmp_path, tree):
    prom = tmp_path / "fairlead.prom"
    with Running(tmp_path / "its", root=str(tree), textfile=str(prom)) as watch:
        watch.until(lambda now: len(now["ports"]) == 8)
        watch.after()
        found = promtext.read(prom.read_text())
        assert len(found["fairlead_watch_port_active"]) == 8
        assert prom.stat().st_mode & 0o777 == 0o644, "another user's collector reads it"
        for path in watch.folder.iterdir():
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_full_disk_is_told_and_what_it_could_not_keep_is_kept_later(tmp_path, tree):
    if not is_root():
        pytest.skip("a small file system of its own takes root")
    place = tmp_path / "its"
    place.mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "none", place], check=True)
    try:
        with Running(place, root=str(tree)) as watch:
            watch.until(lambda now: len(now["ports"]) == 8)
            filling = os.open(place / "filling", os.O_WRONLY | os.O_CREAT)
            with contextlib.suppress(OSError):
                while True:
                    os.write(filling, b"x" * 512)
            os.close(filling)
            num = 0
            while num < 40:  # each flip is a record
                hca(tree, "mlx5_1", state=DOWN if num % 2 else "4: ACTIVE")
                num += 1
                time.sleep(0.25)
            assert watch.process.poll() is None
            (place / "filling").unlink()
            hca(tree, "mlx5_1")
            watch.until(lambda now: not codes(now))
            watch.end()
        assert "broken" not in check(str(watch.folder))
        said = [r["kind"] for r in watch.records()]
        assert said.count("finding") >= 3
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_a_look_gives_what_it_shows_and_follows_its_chain(watch):
    watch.until(lambda now: len(now["ports"]) == 8)
    program = look_program()
    for do, key in (("now", "ports"), ("verify", "last")):
        asked = json.dumps({"do": do, "folder": str(watch.folder)}).encode() + b"\n"
        done = subprocess.run(
            program.words(sys.executable), input=program.stdin + asked, capture_output=True, timeout=60
        )
        assert key in json.loads(done.stdout), done.stderr
    assert settings()["period_s"] == 10.0
