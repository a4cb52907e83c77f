"""The offline proof, on servers that call out in every way we know of, and on some that do not."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path

import pytest

import fairlead
from fairlead.errors import UsageError
from fairlead.records.verdict import Verdict, aggregate
from fairlead.serve.proof.judge import judge
from fairlead.serve.proof.prove import prove

pytestmark = [pytest.mark.real, pytest.mark.requires("userns")]

PLANTED = Path(__file__).parents[2] / "support" / "planted.py"
OUT4, OUT6 = "192.0.2.7", "[2001:db8::7]"


@pytest.fixture
def proof(tmp_path):
    """Run a planted server; (verdict, the attempts)."""

    def run(*kind, watch_s=0.1, allowed=(), **how):
        # a network namespace of its own: any port is free
        command = [sys.executable, str(PLANTED), "8000", *map(str, kind)]
        record = prove(command, log=tmp_path / "log", patience_s=60, watch_s=watch_s, allowed=allowed, **how)
        return aggregate(f.verdict for f in judge(record, allowed)), record

    return run


PLANTS = {
    "telemetry": ("connect", f"{OUT4}:443/tcp"),
    "hub": ("query", "dns:huggingface.co"),
    "name": ("query", "dns:telemetry.example.com"),
    "ipv6": ("connect", f"{OUT6}:443/tcp"),
    "datagram": ("sendto", f"{OUT4}:8125/udp"),
    "message": ("sendmsg", f"{OUT4}:8126/udp"),
}


def test_every_planted_call_is_seen_with_its_process(proof):
    verdict, record = proof(",".join([*PLANTS, "child"]))
    assert verdict is Verdict.FAIL
    assert [a.status for a in record.asked] == [200] * 4
    by_child = [a for a in record.attempts if "-c import socket" in a.process]
    assert [(a.how, a.to) for a in by_child] == [("connect", f"{OUT4}:443/tcp")]
    others = {(a.how, a.to) for a in record.attempts if a not in by_child}
    assert others == set(PLANTS.values())
    assert all(str(PLANTED) in a.process for a in record.attempts if a not in by_child)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANTS)
def test_one_call_alone_is_enough(proof, kind):
    verdict, record = proof(kind)
    assert verdict is Verdict.FAIL
    assert [(a.how, a.to) for a in record.attempts] == [PLANTS[kind]]


def test_a_call_on_the_way_out_is_seen(proof):
    verdict, record = proof("at-end")
    assert verdict is Verdict.FAIL
    assert [a.to for a in record.attempts] == [f"{OUT4}:443/tcp"]


def test_a_call_that_comes_late_is_seen_while_it_is_watched(proof):
    assert proof("late", 0.5, watch_s=1.5)[0] is Verdict.FAIL


def test_a_clean_server_passes_with_all_that_it_does_inside(proof, tmp_path):
    verdict, record = proof("inside", tmp_path / "own.sock")
    assert (verdict, record.attempts, record.no_route) == (Verdict.PASS, (), 0)


def test_a_unix_socket_to_a_proxy_is_a_call_and_is_refused(proof, tmp_path):
    path = tmp_path / "proxy.sock"
    heard = []

    def listen():
        with contextlib.suppress(TimeoutError):
            client, _ = proxy.accept()
            with client:
                heard.append(client.recv(100))

    with socket.socket(socket.AF_UNIX) as proxy:
        proxy.bind(str(path))
        proxy.listen()
        proxy.settimeout(20)
        thread = threading.Thread(target=listen)
        thread.start()
        verdict, record = proof("unix", path)
        assert verdict is Verdict.FAIL
        assert [a.to for a in record.attempts] == [f"unix:{path}"]
        assert heard == []
        assert proof("unix", path, allowed=(f"unix:{path}",))[0] is Verdict.PASS
        thread.join()
    assert heard[0].startswith(b"CONNECT telemetry")


def test_a_server_that_ends_or_never_answers_proves_nothing(proof):
    verdict, record = proof("ends")
    assert (verdict, record.status, record.asked) == (Verdict.UNKNOWN, 3, ())


def test_a_command_that_is_not_there_is_said(tmp_path):
    with pytest.raises(UsageError) as caught:
        prove(["/no/such/server"], log=tmp_path / "log")
    assert caught.value.code == "serve/no-start"


def test_nothing_outlives_a_proof_that_is_killed(tmp_path):
    """Killed so that nobody can clean up: the kernel ends what it held."""
    code = (
        "import sys; from pathlib import Path; from fairlead.serve.proof.prove import prove;"
        "prove(sys.argv[2:], log=Path(sys.argv[1]))"
    )
    words = [sys.executable, str(PLANTED), "8000", "child"]
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "log", *words], stderr=subprocess.DEVNULL) as run:
        mark = f"{PLANTED}\0" + "8000\0child"
        until = time.monotonic() + 60
        while not _running(mark, str(tmp_path)) and time.monotonic() < until:
            time.sleep(0.05)
        assert _running(mark, str(tmp_path))
        run.kill()
    while _running(mark, str(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert _running(mark, str(tmp_path)) == []


def _running(mark, log):
    """Processes whose words hold a mark and whose output goes below a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            is_marked = entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes()
            if is_marked and str((entry / "fd" / "1").readlink()).startswith(log):
                found.append(int(entry.name))
    return found


def test_an_ordinary_user_proves_it_too(tmp_path):
    """Where users may make namespaces: nothing of it needs a right."""
    if os.geteuid():
        pytest.skip("this user is an ordinary one: the other tests show it")
    packages = [str(Path(fairlead.__file__).parents[1]), sysconfig.get_path("purelib")]
    home = Path(tempfile.mkdtemp())
    shutil.copy(PLANTED, home)
    os.chown(home, 65534, 65534)
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    code = (
        "from pathlib import Path; from fairlead.serve.proof.prove import prove; import sys;"
        "print([a.to for a in prove([sys.executable, 'planted.py', '8000', sys.argv[1]], log=Path('log'),"
        " watch_s=0.1, patience_s=60).attempts])"
    )
    python = _python_for_all(words)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(packages), "HOME": str(home)}
    try:
        for kind, seen in (("none", "[]"), ("telemetry", f"['{OUT4}:443/tcp']")):
            done = subprocess.run(
                [*words, python, "-c", code, kind], env=env, cwd=home, capture_output=True, text=True, timeout=120
            )
            assert (done.stdout.strip(), done.stderr) == (seen, "")
    finally:
        shutil.rmtree(home)


def _python_for_all(words):
    again = (
        "import subprocess, sys; sys.exit(sys.version_info < (3, 11) or subprocess.call([sys.executable, '-c', '']))"
    )
    for found in (sys.executable, shutil.which("python3", path="/usr/bin:/usr/local/bin")):
        if found and subprocess.run([*words, found, "-c", again], capture_output=True).returncode == 0:
            return found
    return pytest.skip("needs a Python that an ordinary user may start")
