"""`fairlead fabric sim` as a person or a script meets it: the real program, its two streams, its exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from fairlead.records.runs import list_runs

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]  # the first run on a machine compiles the engine

SMALL = """\
title = "small"
[topology]
planes = 2
t0 = 2
t1 = 2
hosts_per_t0 = 2
[[traffic]]
kind = "permutation"
size_bytes = 200_000
"""

ENDLESS = """\
[topology]
planes = 4
t0 = 8
t1 = 8
hosts_per_t0 = 8
[[traffic]]
kind = "permutation"
size_bytes = 5_000_000_000
[run]
until_us = 1_000_000
"""

TEN_MISTAKES = """\
titel = "x"
[topology]
planes = 40
t0 = 3
nics = 10
[links]
host_gbps = -1
[transport]
kind = "rdma"
[queues]
trim = "yes"
[[traffic]]
kind = "incast"
[[traffic]]
kind = "permutation"
nics = "5-2"
[[fault]]
kind = "link"
t0 = 0
[[fault]]
kind = "port"
nic = 3
at_us = 10
until_us = 5
"""


@pytest.fixture
def sim(tmp_path):
    """Run a scenario text with more words; the finished process."""

    def call(text, *words):
        (tmp_path / "s.toml").write_text(text)
        argv = [sys.executable, "-m", "fairlead", "fabric", "sim", "s.toml", *words]
        env = {**os.environ, "FAIRLEAD_RUNS": "runs"}
        return subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=800, check=False)

    return call


def test_a_run_answers_on_stdout_tells_its_progress_on_stderr_and_is_kept(sim, tmp_path):
    done = sim(SMALL)
    assert done.returncode == 0
    assert done.stdout.startswith("small\n\nfabric     4 NICs x 2 planes")
    assert "every message is complete" in done.stdout
    assert re.search(r"compiling kernels \(once\) +\d+ of \d+", done.stderr)
    assert re.search(r"messages +4 of 4 .* hops, [\d.]+ M/s", done.stderr)
    assert "next     fairlead fabric sim s.toml --html s.html" in done.stderr
    (folder,) = list_runs(tmp_path / "runs")
    assert f"wrote    {folder.relative_to(tmp_path)}" in done.stderr.replace(f"{tmp_path}/", "")
    assert (folder / "scenario.toml").read_text() == SMALL
    assert (folder / "summary.txt").read_text() == done.stdout
    assert json.loads((folder / "result.json").read_text())["ended"] == "done"


def test_json_is_one_document_with_everything(sim):
    document = json.loads(sim(SMALL, "--json", "-q").stdout)
    assert document["schema"] == "fairlead.fabric-sim/1"
    assert document["ended"] == "done"
    assert document["traffic"][0]["done"] == 4
    assert document["traffic"][0]["took_us"] > document["traffic"][0]["bound_us"] > 0
    assert document["packets"]["new"] == 4 * 49
    assert document["hops_per_s"] > 0


def test_the_page_stands_alone(sim, tmp_path):
    assert sim(SMALL, "-q", "--html", "s.html", "--svg", "pictures").returncode == 0
    page = (tmp_path / "s.html").read_text()
    assert "fairlead fabric sim s.toml" in page
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert (tmp_path / "pictures" / "goodput.svg").read_text().startswith("<svg")


def test_ten_mistakes_are_told_at_once_with_line_and_caret(sim):
    done = sim(TEN_MISTAKES)
    assert done.returncode == 2
    assert done.stdout == ""
    told = re.findall(r"^s\.toml:(\d+): ", done.stderr, re.MULTILINE)
    assert [int(line) for line in told] == [1, 3, 5, 7, 9, 11, 13, 16, 18, 24]
    assert done.stderr.count("^") >= 10
    assert "10 problems" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SMALL.replace("hosts_per_t0 = 2", "nics = 7"), "7 NICs cannot be spread evenly over 2 T0 switches"),
        (SMALL + '[[fault]]\nkind = "link"\nt0 = 0\nt1 = 2\n', "there is no T1 2; there are 2, counted from 0"),
        (SMALL + '[[fault]]\nkind = "port"\nnic = 4\n', "there is no NIC 4; there are 4, counted from 0"),
        (SMALL + '[[fault]]\nkind = "t0"\nplane = 2\nt0 = 0\n', "there is no plane 2; there are 2, counted from 0"),
        ("[topology\n", "s.toml:1"),
        ("", "s.toml is empty"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(sim, text, says):
    done = sim(text)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_file_is_a_usage_error(tmp_path):
    argv = [sys.executable, "-m", "fairlead", "fabric", "sim", "absent.toml", "--json"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit"] == 2


@pytest.mark.parametrize("flags", [["--seed", "-1"], ["--threads", "-1"], ["--until-us", "-5"], ["--until-us", "nan"]])
def test_flags_are_held_to_the_bounds_of_the_file(sim, flags):
    done = sim(SMALL, *flags)
    assert done.returncode == 2
    assert flags[0] in done.stderr


def test_what_would_not_fit_is_refused_before_memory_is_taken_with_the_estimate(sim):
    text = "[topology]\nplanes = 8\nt0 = 512\nt1 = 256\nhosts_per_t0 = 256\n" + '[[traffic]]\nkind = "permutation"\n'
    done = sim(text + "[run]\nmemory_gib = 1\n")
    assert done.returncode == 4
    assert re.search(r"the run would take up to [\d.]+ GiB \(.*\); 1 GiB may be used", done.stderr)
    too_many = sim(text.replace("permutation", "all-to-all"))
    assert too_many.returncode == done.returncode
    assert "17,179,738,112 messages" in too_many.stderr


def test_an_estimate_takes_nothing(sim):
    document = json.loads(sim(ENDLESS, "--estimate", "--json").stdout)
    assert document["nics"] == 64
    assert sum(document["memory_bytes"].values()) > 1 << 20


def test_ctrl_c_keeps_what_was_played(tmp_path):
    (tmp_path / "s.toml").write_text(ENDLESS)
    argv = [sys.executable, "-m", "fairlead", "fabric", "sim", "s.toml", "--json", "--html", "s.html"]
    env = {**os.environ, "TERM": "dumb", "FAIRLEAD_RUNS": "runs"}
    with subprocess.Popen(
        argv, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as run:
        assert any(line.startswith("messages") for line in run.stderr)  # it tells so while it plays
        run.send_signal(signal.SIGINT)
        stdout, stderr = run.communicate(timeout=240)
    assert run.returncode == 130
    document = json.loads(stdout)
    assert document["ended"] == "interrupted"
    assert document["exit"] == 130
    assert document["packets"]["new"] > 1000
    assert max(map(max, document["goodput"]["planes_bits_per_s"])) > 1e11
    (kept,) = list_runs(tmp_path / "runs")
    assert json.loads((kept / "result.json").read_text()) == document
    assert "interrupted" in (tmp_path / "s.html").read_text()
    assert "Traceback" not in stderr
