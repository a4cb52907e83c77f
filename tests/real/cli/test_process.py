"""The program as a process: signals, pipes, closed streams, terminals, full disks."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairlead.records.runs import list_runs
from support import verbs as more

pytestmark = pytest.mark.real

FAIRLEAD = [sys.executable, "-m", "fairlead"]
WITH_MORE = [sys.executable, more.__file__]


@pytest.fixture
def env(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FAIRLEAD", "XDG", "NO_COLOR", "FORCE_COLOR"))}
    return kept | {"HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(more.__file__).parents[1]), "TERM": "xterm"}


def call(*words, env, program=FAIRLEAD, **more_options):
    options = {"capture_output": True, "timeout": 120, "env": env} | more_options
    return subprocess.run([*program, *words], **options)


def started(*words, env, program=WITH_MORE):
    """A program that has said `ready`."""
    process = subprocess.Popen([*program, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    line = process.stderr.readline()
    assert line.startswith(b"ready"), line
    return process


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "stopped by SIGTERM"),
        (signal.SIGHUP, "stopped by SIGHUP"),
    ],
)
def test_a_signal_is_answered_with_one_document_and_status_130(env, tmp_path, sent, said):
    process = started("t-wait", "--json", env=env)
    process.send_signal(sent)
    out, err = process.communicate(timeout=60)
    document = json.loads(out)
    assert process.returncode == document["exit"] == 130
    assert document["error"] == {"code": "cli/interrupted", "message": said, "hint": ""}
    assert b"Traceback" not in err
    (folder,) = list_runs(tmp_path / "runs")
    assert json.loads((folder / "result.json").read_text()) == document, "the run folder is closed too"


def test_a_second_interrupt_ends_it_at_once(env):
    process = started("t-deaf", env=env)
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == b"cleaning\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in err


def test_sigkill_leaves_a_folder_that_says_it_was_cut_short(env, tmp_path):
    process = started("t-wait", env=env)
    process.kill()
    process.communicate(timeout=60)
    assert b"cut short" in call("show", env=env).stdout
    assert call("show", "last", env=env).returncode == 2


def test_a_nohup_program_outlives_its_terminal(env):
    process = started("t-wait", "2", env=env, program=["nohup", *WITH_MORE])
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.parametrize("words", [["explain"], ["--help"], ["explain", "--json"], ["schema", "cluster"]])
def test_a_reader_that_leaves_is_no_failure(env, words):
    line = f"{' '.join(FAIRLEAD)} {' '.join(words)} | head -c 10; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, env=env, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout) == 10


def test_a_reader_that_left_before_the_first_word(env):
    read, write = os.pipe()
    os.close(read)
    done = call("explain", env=env, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", [["explain"], ["explain", "--json"]])
def test_standard_output_on_a_full_disk_is_temporary(env, words):
    with Path("/dev/full").open("wb") as full:
        done = call(*words, env=env, capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 5
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
@pytest.mark.parametrize(("words", "status"), [("explain cli/bug", 0), ("explain nope", 2), ("nope --json", 2)])
def test_closed_streams_change_no_status(env, closed, words, status):
    line = f"{' '.join(FAIRLEAD)} {words} {closed}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, env=env, timeout=60)
    assert done.returncode == status
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(env, encoding):
    for words in (["explain"], ["explain", "\udcff"], ["nope-µ-節"], ["explain", "--json"]):
        done = call(*words, env=env | {"PYTHONIOENCODING": encoding})
        assert done.returncode in (0, 2)
        assert b"bug in fairlead" not in done.stderr


@pytest.mark.requires("root")
@pytest.mark.parametrize(("ballast", "left"), [(16_384, set()), (12_288, {"run.json"})])
def test_a_full_disk_under_the_run_folder_is_status_5_and_leaves_no_half_file(env, tmp_path, ballast, left):
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=16k", "none", str(place)], check=True)
    try:
        (place / "ballast").write_bytes(b"x" * ballast)
        done = call("t-folder", "--json", "--runs", str(place / "runs"), env=env, program=WITH_MORE)
        assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (5, "disk/full")
        files = {p for p in place.rglob("*") if p.is_file() and p.name != "ballast"}
        assert {p.name for p in files} == left
        assert all(json.loads(p.read_text()) for p in files)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_as_an_ordinary_user_in_the_root_folder_it_writes_to_the_state_folder(env, tmp_path):
    done = call("t-folder", env=env, program=WITH_MORE, cwd="/")
    assert done.returncode == 0
    assert len(list_runs(tmp_path / "home/.local/state/fairlead/runs")) == 1


def test_where_no_folder_can_be_made_it_says_so(env):
    done = call("t-folder", "--json", env=env | {"HOME": "/proc"}, program=WITH_MORE, cwd="/")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (4, "disk/not-writable")


def test_two_at_once_keep_apart(env, tmp_path):
    many = [subprocess.Popen([*WITH_MORE, "t-folder", "--json"], stdout=subprocess.PIPE, env=env) for _ in range(6)]
    ids = {json.loads(p.communicate(timeout=60)[0])["run"] for p in many}
    assert len(ids) == 6
    left = list_runs(tmp_path / "runs")
    assert {p.name for p in left} <= ids, "and retention took whole folders"
    assert all((p / "result.json").is_file() for p in left)


def on_terminal(words, env, program):
    """What a program writes to a terminal, and its status."""
    main, side = pty.openpty()
    process = subprocess.Popen([*program, *words], stdout=side, stderr=side, stdin=side, env=env, close_fds=True)
    os.close(side)
    seen, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        ready, _, _ = select.select([main], [], [], 0.5)
        if not ready:
            if process.poll() is not None:
                break
            continue
        try:
            more_text = os.read(main, 4096)
        except OSError:
            break
        if not more_text:
            break
        seen += more_text
    os.close(main)
    return process.wait(60), seen.decode()


def test_on_a_terminal_progress_is_one_live_line(env):
    status, seen = on_terminal(["t-progress"], env, WITH_MORE)
    assert status == 0
    assert seen.count("\r\x1b[2K") >= 3
    assert "half time\r\n" in seen
    assert "\x1b[31m" not in seen


def test_a_dumb_terminal_gets_plain_lines(env):
    status, seen = on_terminal(["t-progress"], env | {"TERM": "dumb"}, WITH_MORE)
    assert status == 0
    assert "\x1b" not in seen


def test_help_fits_a_narrow_terminal(env):
    status, seen = on_terminal(["show", "--help"], env | {"COLUMNS": "60"}, FAIRLEAD)
    assert status == 0
    assert max(len(line) for line in seen.splitlines()) <= 60


def test_completion_installs_for_bash_and_completes(env, tmp_path):
    done = call("--install-completion", env=env | {"SHELL": "/bin/bash"})
    assert done.returncode == 0, done.stderr
    (script,) = [p for p in (tmp_path / "home").rglob("*fairlead*") if p.is_file()]
    complete = (
        f"source {script}; COMP_WORDS=(fairlead expl); COMP_CWORD=1; "
        "f=$(complete -p fairlead | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); $f fairlead expl fairlead; echo ${COMPREPLY[@]}"
    )
    said = subprocess.run(["bash", "-c", complete], capture_output=True, text=True, env=env, timeout=30)
    assert said.stdout.split() == ["explain"], said.stderr


# ---- a neighbour on the same machine ---------------------------------------------------------------------------------


NEIGHBOUR = 54321
PLANTED = """\
schema = 1
[[pool]]
name = "p"
size = "other"
nodes = "localhost"
python = "{program}"
[fabric]
link = "ethernet"
rdma = "none"
[access]
via = "local"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_what_a_neighbour_laid_out_in_the_current_directory_is_not_run_and_takes_nothing(env, tmp_path):
    precious, planted = tmp_path / "precious", tmp_path / "planted"
    precious.mkdir(mode=0o700)
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\ntouch {tmp_path}/ran\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    planted.mkdir()
    (planted / "cluster.toml").write_text(PLANTED.format(program=program))
    (planted / "runs").symlink_to(precious)
    for path in (planted, planted / "cluster.toml", planted / "runs"):
        os.lchown(path, NEIGHBOUR, NEIGHBOUR)
    named = call("exec", "-f", "cluster.toml", "--", "true", env=env, cwd=planted)
    assert (named.returncode, (tmp_path / "ran").exists()) == (0, True), "who names it says that it is as it should be"
    (tmp_path / "ran").unlink()
    done = call("exec", "--", "true", env=env, cwd=planted)
    assert done.returncode == 2
    assert b"cluster.toml is not read: it belongs to user 54321" in done.stderr
    assert not (tmp_path / "ran").exists()
    assert list(precious.iterdir()) == [], "nothing is written through the neighbour's link"
    assert list_runs(tmp_path / "home/.local/state/fairlead/runs"), "runs go where nobody else can write"
    assert b"no run folder here" in named.stderr


def test_no_program_is_taken_from_the_current_directory(env, tmp_path):
    for name in ("nvidia-smi", "dmesg", "chronyc", "ssh", "sh", "ip"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "mine.toml").write_text(PLANTED.format(program=sys.executable))
    for path in ({}, {"PATH": ""}, {"PATH": ":/usr/bin"}):
        bare = {k: v for k, v in env.items() if k != "PATH"} | path
        assert json.loads(call("probe", "-f", "mine.toml", "--json", env=bare).stdout)["schema"].startswith(
            "fairlead.probe/"
        )
        call("doctor", env=bare)
    assert sorted(p.name for p in tmp_path.glob("ran-*")) == []


# ---- what nodes say --------------------------------------------------------------------------------------------------


def test_what_a_command_on_a_node_says_drives_no_terminal_in_any_face(env, tmp_path):
    (tmp_path / "mine.toml").write_text(PLANTED.format(program=sys.executable))
    says = ["sh", "-c", r"printf '\033[2J\033]0;x\007\302\2332J\342\200\256evil\r\bok\n' | tee /dev/stderr; exit 3"]
    seen = []
    for words in (
        ["exec", "-f", "mine.toml"],
        ["exec", "-f", "mine.toml", "--live"],
        ["exec", "-f", "mine.toml", "--json"],
    ):
        done = call(*words, "-v", "--", *says, env=env | {"FORCE_COLOR": "1"})
        assert done.returncode == 3
        seen.append((done.stdout + done.stderr).decode())
    for words in (["show", "last"], ["show", "last", "--json"], ["show", "--all"]):
        done = call(*words, env=env)
        seen.append((done.stdout + done.stderr).decode())
    for text in seen:
        plain = re.sub(r"\x1b\[(?:0|1|2|3[1-5])m", "", text).replace("\r\x1b[2K", "")
        assert not set(plain) & set("\x1b\x07\x9b\u202e\r\x08"), ascii(plain)
    assert all("evil" in text for text in seen[:3])
    assert r"\x1b[2J" in seen[0]
    assert json.loads(call("exec", "-f", "mine.toml", "--json", "--", *says, env=env).stdout)["results"][0][
        "stdout"
    ] == ("\x1b[2J\x1b]0;x\x07\x9b2J\u202eevil\r\bok\n")
