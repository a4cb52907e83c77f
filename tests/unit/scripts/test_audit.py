"""What `make audit` says: the documented answer of pip-audit in sentences, and where nobody answered, just that."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts/audit"
said_of = runpy.run_path(str(SCRIPT))["said_of"]
FOUND = {
    "dependencies": [
        {
            "name": "flask",
            "version": "0.5",
            "vulns": [
                {
                    "id": "PYSEC-2019-179",
                    "fix_versions": ["1.0"],
                    "aliases": ["CVE-2019-1010083", "GHSA-5wv5-4vpf-pj6m"],
                    "description": "The Pallets Project Flask before 1.0 is affected by: unexpected memory usage.",
                },
                {
                    "id": "PYSEC-2018-66",
                    "fix_versions": ["0.12.3"],
                    "aliases": ["CVE-2018-1000656", "GHSA-562c-5r94-xh97"],
                    "description": "CWE-20: Improper Input Validation.",
                },
            ],
        },
        {"name": "jinja2", "version": "3.0.2", "vulns": []},
        {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.13.0+cpu)"},
    ],
    "fixes": [],
}
"""The entries of pip-audit's README, "Audit dependencies in JSON format"; later versions put them into an object."""


def test_holes_are_named_with_the_version_that_has_none():
    status, lines = said_of(json.dumps(FOUND))
    assert status == 1
    assert lines[0] == "flask 0.5: PYSEC-2019-179, CVE-2019-1010083, GHSA-5wv5-4vpf-pj6m; mended in 1.0"
    assert lines[-2:] == [
        "not looked at, as the index does not have them: torch",
        "2 known holes in 2 packages",
    ]


def test_without_holes_it_says_so_and_of_how_many_packages():
    clean = {"dependencies": FOUND["dependencies"][1:], "fixes": []}
    assert said_of(json.dumps(clean))[0] == 0
    assert said_of(json.dumps(clean))[1][-1] == "no known hole in 1 packages"


def test_the_list_of_older_versions_is_read_as_well():
    assert said_of(json.dumps(FOUND["dependencies"])) == said_of(json.dumps(FOUND))


def test_where_the_index_has_none_of_them_nothing_is_known():
    """pip-audit itself then ends with 0 and says that it found nothing: so it is where a mirror has no advisories."""
    with pytest.raises(ValueError, match="could not be audited"):
        said_of(json.dumps({"dependencies": FOUND["dependencies"][2:], "fixes": []}))


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"dependencies": []}', '{"dependencies": [1]}', "<html>"])
def test_what_is_no_answer_is_never_none(text):
    with pytest.raises((ValueError, KeyError, TypeError)):
        said_of(text)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("echo 'requests.exceptions.ConnectionError: Max retries exceeded' >&2; exit 1", "Max retries exceeded"),
        ("echo '[]'", "the advisory databases were not asked"),
        ("exit 0", "no word"),
        (None, "pip-audit did not run"),
    ],
)
def test_where_nobody_could_be_asked_it_fails_and_says_what_it_needs(tmp_path, program, says):
    path = tmp_path / "pip-audit"
    if program is not None:
        path.write_text(f"#!/bin/sh\n{program}\n")
        path.chmod(0o755)
    done = subprocess.run([sys.executable, SCRIPT, path, tmp_path], capture_output=True, text=True, timeout=30)
    assert done.returncode == 2
    assert says in done.stdout
    assert "https to pypi.org" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_where_it_cannot_be_installed_one_sentence_says_so(tmp_path):
    """pip itself, and an index that nobody answers for: the discard port of loopback."""
    made = tmp_path / "audit/bin"
    made.mkdir(parents=True)
    (made / "pip").write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
    (made / "pip").chmod(0o755)
    away = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull, "PATH": os.environ["PATH"]}
    words = [sys.executable, SCRIPT, made / "pip-audit", tmp_path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=away)
    assert (done.returncode, done.stderr) == (2, "")
    first, second = done.stdout.splitlines()
    assert first == "pip-audit could not be installed: ERROR: No matching distribution found for pip-audit"
    assert "https to pypi.org" in second
