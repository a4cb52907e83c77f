from __future__ import annotations

import re

from fairlead.records.codes import explanations


def test_every_explanation_is_whole_and_named_as_codes_are():
    known = explanations()
    assert len(known) > 20
    for code, entry in known.items():
        assert re.fullmatch(r"[a-z0-9]+/[a-z0-9]+(-[a-z0-9]+)*", code), code
        for part in (entry.title, entry.cause, entry.evidence, entry.remedy):
            assert len(part) > 8, code
            assert part == part.strip(), code
            assert part[-1] in ".`)?", f"{code}: {part}"


def test_each_code_is_explained_once():
    import tomllib
    from pathlib import Path

    import fairlead

    seen: dict[str, Path] = {}
    for path in sorted(Path(fairlead.__file__).parent.rglob("codes.toml")):
        for code in tomllib.loads(path.read_text()):
            assert code not in seen, f"{code} is in {seen[code]} and {path}"
            seen[code] = path
    assert set(seen) == set(explanations())
