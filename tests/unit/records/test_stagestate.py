"""What a stage left is gone on from, or refused with a way out: never half understood, never two at once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from fairlead.errors import Exit, NotPermitted, RunError
from fairlead.records.codes import explanations
from fairlead.records.stagestate import StageState


class Spread(msgspec.Struct, frozen=True):
    """A state such as `weights` may have."""

    shards: dict[str, tuple[str, ...]] = {}
    bytes_done: int = 0


HALF = Spread({"n1": ("a", "b")}, 1 << 40)


@pytest.fixture
def state(tmp_path):
    return StageState(tmp_path / "weights" / "llama.json", Spread, schema="fairlead.weights-state/1")


def test_what_was_written_is_read_back_as_it_was(state):
    assert state.read() is None
    state.write(HALF)
    assert state.read() == HALF
    state.write(Spread())
    assert state.read() == Spread()
    state.clear()
    state.clear()
    assert state.read() is None


def test_the_file_says_what_it_is_and_who_wrote_it(state):
    state.write(HALF)
    kept = json.loads(state.path.read_text())
    assert list(kept) == ["schema", "version", "written", "state", "digest"]
    assert (kept["schema"], kept["state"]["bytes_done"]) == ("fairlead.weights-state/1", 1 << 40)


def test_a_state_of_another_schema_is_refused_with_the_way_out(state):
    state.write(HALF)
    newer = StageState(state.path, Spread, schema="fairlead.weights-state/2")
    with pytest.raises(RunError) as refused:
        newer.read()
    assert refused.value.code == "run/state-schema"
    assert "is fairlead.weights-state/1, written by fairlead" in str(refused.value)
    assert refused.value.hint == f"to start afresh: rm {state.path}"
    assert state.read() == HALF, "it is still there for the version that wrote it"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"schema": "fairlead.weights-state/1"}',
        '{"schema": "fairlead.weights-state/1", "version": "1", "written": "x", "state": {"bytes_done": "many"}}',
        "\x00\xff",
    ],
)
def test_a_state_that_does_not_read_is_refused_and_never_half_understood(state, text):
    state.path.parent.mkdir()
    state.path.write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError) as refused:
        state.read()
    assert refused.value.code == "run/state-damaged"
    assert str(state.path) in str(refused.value)


def test_a_folder_in_its_place_is_refused_too(state):
    state.path.mkdir(parents=True)
    with pytest.raises(RunError, match="does not read"):
        state.read()
    with pytest.raises(NotPermitted):
        state.clear()


_HOLDER = """
import sys, time
from pathlib import Path
from fairlead.records.stagestate import StageState
state = StageState(Path(sys.argv[1]), dict, schema="x/1")
with state.turn():
    print("mine", flush=True)
    time.sleep(60)
"""


def test_one_run_at_a_time_and_a_killed_one_gives_its_turn_back(state):
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(state.path)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"mine\n"
    with pytest.raises(RunError) as busy, state.turn():
        pytest.fail("two at once")
    assert (busy.value.code, busy.value.exit) == ("run/state-busy", Exit.RETRY)
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    holder.stdout.close()
    with state.turn(limit_s=5):
        state.write(HALF)


_WRITER = """
import sys
from pathlib import Path
from fairlead.records.stagestate import StageState
state = StageState(Path(sys.argv[1]), dict, schema="x/1")
print("ready", flush=True)
number = 0
while True:
    number += 1
    state.write({"number": number, "ballast": [number] * 20_000})
"""


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_state(tmp_path):
    path = tmp_path / "s.json"
    state = StageState(path, dict, schema="x/1")
    for delay_s in (0.02, 0.05, 0.09):
        child = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
        child.stdout.readline()
        while not path.exists():
            time.sleep(0.005)
        time.sleep(delay_s)
        child.kill()
        child.wait(60)
        child.stdout.close()
        found = state.read()
        assert found["ballast"] == [found["number"]] * 20_000


def test_a_write_that_fails_leaves_the_state_before(tmp_path):
    path = tmp_path / "s.json"
    state = StageState(path, dict, schema="x/1")
    state.write({"number": 1})
    script = """
import resource, sys
from pathlib import Path
from fairlead.errors import NotPermitted
from fairlead.records.stagestate import StageState
resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))
try:
    StageState(Path(sys.argv[1]), dict, schema="x/1").write({"ballast": "x" * 5000})
except NotPermitted:
    print("no more")
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "no more\n", done.stderr
    assert state.read() == {"number": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["s.json"]


def test_its_errors_are_explained():
    assert {"run/state-schema", "run/state-damaged", "run/state-busy"} <= set(explanations())


def test_a_state_that_a_neighbour_could_have_written_is_not_gone_on_from(state):
    state.write(HALF)
    state.path.parent.chmod(0o777)
    for use in (state.read, lambda: state.write(HALF), lambda: state.turn().__enter__()):
        with pytest.raises(NotPermitted) as caught:
            use()
        assert caught.value.code == "disk/not-ours"
