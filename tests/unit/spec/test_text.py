"""From a path to a tree: each way it can fail is one sentence, with its place, and no secret is repeated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.errors import Exit, Problem, SpecError
from fairlead.spec.text import MAX_BYTES, SECRET_NAME, holds_secret, parse, printable, read_text


def refused(path: Path) -> SpecError:
    with pytest.raises(SpecError) as caught:
        read_text(path, what="cluster file", hint="fairlead init")
    assert caught.value.exit is Exit.USAGE
    return caught.value


def syntax(text: str) -> Problem:
    with pytest.raises(SpecError) as caught:
        parse(text, file="c.toml")
    (problem,) = caught.value.problems
    assert problem.code == "spec/syntax"
    return problem


def test_missing(tmp_path: Path) -> None:
    error = refused(tmp_path / "c.toml")
    assert error.code == "spec/missing-file"
    assert str(error) == f"{tmp_path}/c.toml: there is no cluster file {tmp_path}/c.toml"
    assert error.hint == "fairlead init"


def test_directory(tmp_path: Path) -> None:
    error = refused(tmp_path)
    assert (error.code, "is a directory, not a cluster file" in str(error)) == ("spec/unreadable", True)
    assert error.hint == "name a file in it"


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's right to read everything, where we are root."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_no_right(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.touch(mode=0)
    with as_nobody():
        error = refused(path)
    assert (error.code, str(error).endswith("Permission denied")) == ("spec/unreadable", True)


def test_name_no_system_takes(tmp_path: Path) -> None:
    assert refused(tmp_path / "a\0b").code == "spec/unreadable"
    assert refused(tmp_path / ("x" * 300)).code == "spec/unreadable"


def test_endless_device() -> None:
    assert refused(Path("/dev/zero")).code == "spec/too-large"


def test_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert len(read_text(path)) == MAX_BYTES
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    assert refused(path).code == "spec/too-large"


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"a = 1\nb = '\xff'\n")
    (problem,) = refused(path).problems
    assert (problem.code, problem.line, problem.message) == ("spec/not-text", 2, "byte 0xff is not UTF-8 text")


def test_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_bytes(b"\xef\xbb\xbfschema = 1\n")
    assert read_text(path) == "schema = 1\n"


def test_syntax_points_at_line_and_column() -> None:
    assert str(syntax("a = 1\nb = = 2\n")) == "c.toml:2: not TOML: invalid value\n    2 | b = = 2\n      |     ^"


def test_syntax_at_the_end() -> None:
    problem = syntax('a = "x')
    assert (problem.line, problem.source) == (1, 'a = "x')


@pytest.mark.parametrize("text", ["a = " + "[" * 3000, "a = " + "9" * 5000])
def test_syntax_beyond_the_parser(text: str) -> None:
    assert syntax(text).message.startswith(("tables or lists", "not TOML: a number"))


def test_key_twice() -> None:
    assert syntax("a = 1\na = 2\n").line == 2


@pytest.mark.parametrize(
    "name",
    ["password", "db_password", "sas-token", "account_key", "API_KEY", "Secret", "client_secret_id", "credentials"],
)
def test_secret_names(name: str) -> None:
    assert SECRET_NAME.match(name)


@pytest.mark.parametrize("name", ["monkey", "tokens_per_s", "keys", "keyboard", "nodes", "sasquatch"])
def test_names_that_only_look_so(name: str) -> None:
    assert not SECRET_NAME.match(name)


@pytest.mark.parametrize(
    "value",
    [
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "https://x.blob.core.windows.net/c?sv=1&sig=abcdefghijklmnopqrstuvwxyz%3D",
        "DefaultEndpointsProtocol=https;AccountKey=abc",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    ],
)
def test_secret_values(value: str) -> None:
    assert holds_secret(value)
    assert printable(f'x = "{value}"') == ""


def test_line_with_a_secret_key_is_masked() -> None:
    assert printable('password = "hunter2" # mine') == "password = ***"
    assert printable("x = { a = 1, sas_token = 'abc' }") == "x = { a = 1, sas_token = ***"
    assert "hunter2" not in str(syntax('token = "hunter2'))


def test_line_is_made_printable_and_keeps_its_columns() -> None:
    assert printable("a\tb\x1b[31m") == "a b\N{REPLACEMENT CHARACTER}[31m"
