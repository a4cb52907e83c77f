"""What DCGM's diagnostic says of the GPUs: `dcgmi diag -r 1 -j`, the deployment checks, which load no GPU.

A live machine is asked where somebody wants it: it takes seconds, and a daemon (nv-hostengine). A captured tree is read
where it holds an answer, or the time that one took. NVIDIA gives the JSON no stable schema (docs.nvidia.com,
datacenter/dcgm: dcgmi diag, and Diagnostic Errors); both known shapes are read: DCGM 4 with entities and a severity
with each warning, DCGM 2 and 3 with `gpu_ids`.
"""

from __future__ import annotations

import json
from typing import Any, Iterator

from fairlead.probe.readers.tree import Hole, Tree, slug

DIAG = ["dcgmi", "diag", "-r", "1", "-j"]
DIAG_LIMIT_S = 17.0
DIAG_ROOTS = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
MAX_RESULTS = 256


def read_dcgm(tree: Tree) -> dict[str, Any]:
    """As `ask_dcgm`, or `not_asked` and why."""
    kept = "/cmd/" + slug(DIAG)
    if not tree.live and (tree.holds(kept) or tree.holds(kept + ".took")):
        return ask_dcgm(tree)
    return {"not_asked": "nobody asked DCGM: fairlead probe --dcgm does"}


def ask_dcgm(tree: Tree) -> dict[str, Any]:
    """`results`: each test on each GPU: `test`, `on`, `status` as printed, `severity` of the worst warning, `text`."""
    source = " ".join(DIAG)
    tree.source((), source)
    # it ends with a status of its own for each trouble, and with the answer on stdout
    text, took_s = tree.timed(DIAG, DIAG_LIMIT_S, fine=tuple(range(256)))
    if "\ufffd" in text:
        raise Hole("prints bytes that are not text", source)
    try:
        # a warning may stand before the document
        found = json.loads(text[text.index("{") :])
        root = next(found[key] for key in DIAG_ROOTS if key in found)
    except (ValueError, TypeError, StopIteration, RecursionError):
        first = text.strip().split("\n")[0][:200]
        raise Hole("is no answer of a diagnostic: " + first if first else "prints nothing", source) from None
    error = root.get("runtime_error") if isinstance(root, dict) else None
    if error:
        raise Hole("says: " + str(error)[:200], source)
    try:
        results = list(_diag_results(root))
    except (KeyError, TypeError, AttributeError, ValueError):
        raise Hole("has not the shape of a diagnostic's answer", source) from None
    return {"results": results[:MAX_RESULTS], "took_s": took_s}


def _diag_results(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for category in root["test_categories"]:
        for test in category["tests"]:
            for result in test["results"] if test else ():  # DCGM 3 puts a null between tests
                warnings = result.get("warnings") or []
                told = [w if isinstance(w, dict) else {"warning": w} for w in _as_list(warnings)]
                severities = [w["error_severity"] for w in told if isinstance(w.get("error_severity"), int)]
                group = str(result.get("entity_group", "GPU"))
                yield {
                    "test": str(test["name"])[:64],
                    "on": ("%s %s" % (group, result["entity_id"] if "entity_id" in result else result["gpu_ids"]))[:64],
                    "status": str(result["status"])[:32],
                    "severities": sorted(set(severities)),
                    "text": "; ".join(str(w.get("warning", ""))[:300] for w in told[:4]),
                }


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
