"""Programs for nodes: parts joined into one file, read from standard input by exactly its length."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from fairlead.base import program as joining
from fairlead.base.program import Program
from fairlead.cluster.talk import guard

PARTS = ("fairlead.cluster.channel",)


def made(source: bytes) -> Program:
    return Program("fairlead-test", source, "")


def run(program: Program, args=(), behind=b"", **settings) -> subprocess.CompletedProcess[bytes]:
    argv = program.words(sys.executable, args)
    return subprocess.run(argv, input=program.stdin + behind, capture_output=True, timeout=30, **settings)


def test_it_is_read_from_standard_input_and_the_rest_is_left_to_it():
    done = run(made(b"import os\nprint(os.read(0, 99).decode().strip() + '!')\n"), behind=b"more\n")
    assert done.stdout == b"more!\n", done.stderr


def test_it_has_its_name_and_its_own_words():
    assert made(b"").words("python3")[:6] == ("python3", "-I", "-S", "-u", "-X", "fairlead-test")
    assert b'File "fairlead-test", line 1' in run(made(b"1 / 0")).stderr
    assert run(made(b"import sys\nprint(sys.argv)\n"), ["--limit", "a b"]).stdout == b"['-c', '--limit', 'a b']\n"


def test_one_that_came_in_part_does_not_run():
    program = made(b"print('never')\n")
    done = subprocess.run(program.words(sys.executable), input=program.stdin[:-4], capture_output=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"did not arrive whole" in done.stderr


def test_one_that_comes_in_small_pieces_runs():
    program = made(b"print('whole')\n" + b"# " + b"x" * 60_000 + b"\n")
    with subprocess.Popen(program.words(sys.executable), stdin=-1, stdout=-1) as process:
        assert process.stdin
        for start in range(0, len(program.stdin), 500):
            process.stdin.write(program.stdin[start : start + 500])
            process.stdin.flush()
        assert process.communicate(timeout=30)[0] == b"whole\n"


def test_what_lies_in_the_working_directory_is_not_imported(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')\n")
    for needs_packages in (False, True):
        program = Program("t", b"import json\nprint(json.loads('1'))\n", "", needs_packages)
        assert run(program, cwd=tmp_path).stdout == b"1\n"


def test_only_one_that_needs_packages_sees_them():
    source = b"import sys\nprint(any('site-packages' in p for p in sys.path))\n"
    assert run(Program("t", source, "")).stdout == b"False\n"
    assert run(Program("t", source, "", needs_packages=True)).stdout == b"True\n"


def test_the_command_line_survives_any_login_shell():
    code = made(b"").words("/opt/py/bin/python3")[-1]
    assert not set("'!\n\\$`") & set(code)


def test_a_part_keeps_its_code_and_loses_what_ties_it_to_us():
    program = guard()
    tree = ast.parse(program.source, feature_version=(3, 9))
    modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not {m for m in modules if m and m.split(".")[0] == "fairlead"}
    assert {m.split(".")[0] for m in modules if m} <= sys.stdlib_module_names | {"__future__"}
    assert f'PROGRAM_DIGEST = "{program.digest}"'.encode() in program.source
    assert b"# ---- channel.py\n" in program.source


def test_a_later_part_is_compiled_when_it_is_asked_for():
    call = "print('Channel' in globals()); later(); print('Channel' in globals()); later()"
    program = Program.of("t", "fairlead.base.later", call=call, later=PARTS)
    assert run(program).stdout == b"False\nTrue\n"
    assert Program.of("t", "fairlead.base.later", call=call).digest != program.digest


def test_the_digest_is_of_the_text():
    assert Program.of("a", *PARTS).digest == Program.of("b", *PARTS).digest != guard().digest


def test_an_import_of_what_is_no_part_is_an_error_here_and_not_on_the_node():
    with pytest.raises(AssertionError, match="which is no part"):
        Program.of("t", "fairlead.cluster.onnode.guard")


def test_names_that_stand_in_two_parts_are_an_error(monkeypatch):
    monkeypatch.setattr(joining, "_text", lambda _: '"""doc"""\nLIMIT = 1\n')
    with pytest.raises(AssertionError, match="LIMIT"):
        Program.of("t", "fairlead.one", "fairlead.two")
