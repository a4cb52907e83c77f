"""A small client of an API server: objects are plain dicts, paths come from what the server says it has.

Applying is server-side apply, which is strict about unknown fields where creating is not: every field is looked up in
the server's own schema. See https://kubernetes.io/docs/reference/using-api/server-side-apply/.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from support.services import until

Object = dict[str, Any]
_APPLY = "application/apply-patch+yaml"  # JSON is YAML


class Refused(Exception):
    """The server's own words: `Status.message`, its HTTP status and its machine-readable reason."""

    def __init__(self, status: int, said: Mapping[str, Any]) -> None:
        super().__init__(said.get("message", ""))
        self.status = status
        self.reason = said.get("reason", "")


class Api:
    """One user of one API server."""

    def __init__(self, url: str, ca: Path, certificate: Path | None = None) -> None:
        context = ssl.create_default_context(cafile=str(ca))
        if certificate:
            context.load_cert_chain(certificate)
        self.url = url
        self._http = httpx2.Client(base_url=url, verify=context, trust_env=False, timeout=30)
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: object = None, kind: str = "application/json", **params: str) -> Any:
        """What the server answers, decoded. Raises Refused."""
        data = None if body is None else json.dumps(body).encode()
        answer = self._http.request(method, path, content=data, headers={"Content-Type": kind}, params=params)
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        said = answer.json() if is_json else answer.text
        if answer.status_code >= 400:
            raise Refused(answer.status_code, said if isinstance(said, dict) else {"message": said})
        return said

    def path(self, what: Object) -> str:
        """Where an object of this apiVersion, kind, namespace and name lives."""
        version, kind, meta = what["apiVersion"], what["kind"], what.get("metadata", {})
        if (version, kind) not in self._kinds:
            base = f"/apis/{version}" if "/" in version else f"/api/{version}"
            for row in self.ask("GET", base)["resources"]:
                if "/" not in row["name"]:
                    self._kinds[version, row["kind"]] = (f"{base}|{row['name']}", row["namespaced"])
        if (version, kind) not in self._kinds:
            raise Refused(404, {"message": f"the server has no {kind} in {version}", "reason": "NotFound"})
        where, is_namespaced = self._kinds[version, kind]
        base, _, plural = where.partition("|")
        space = f"/namespaces/{meta.get('namespace', 'default')}" if is_namespaced else ""
        return f"{base}{space}/{plural}" + (f"/{meta['name']}" if "name" in meta else "")

    def has(self, version: str, kind: str) -> bool:
        """Whether the server knows the kind in this version."""
        try:
            self.path({"apiVersion": version, "kind": kind})
        except Refused:
            return False
        return True

    def apply(self, what: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply; the object as the server has it then. A dry run passes admission and keeps nothing."""
        said = {"fieldManager": "fairlead-tests", "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return self.ask("PATCH", self.path(what), what, _APPLY, **said)

    def create(self, what: Object) -> Object:
        """POST, as `kubectl create`: in this version unknown fields are dropped, not refused."""
        return self.ask("POST", self.path({**what, "metadata": _without_name(what)}), what)

    def get(self, version: str, kind: str, name: str, namespace: str = "default") -> Object:
        return self.ask("GET", self.path(_named(version, kind, name, namespace)))

    def list(self, version: str, kind: str, namespace: str = "default", **params: str) -> list[Object]:
        """All of a kind, each whole by itself: in a list the server leaves out what they have in common."""
        path = self.path({"apiVersion": version, "kind": kind, "metadata": {"namespace": namespace}})
        return [{"apiVersion": version, "kind": kind, **found} for found in self.ask("GET", path, **params)["items"]]

    def delete(self, what: Object, **params: str) -> None:
        """Have it go; one that has gone is as good."""
        try:
            self.ask("DELETE", self.path(what), **params)
        except Refused as error:
            if error.status != 404:
                raise

    def merge(self, what: Object, change: Object, *, below: str = "") -> Object:
        """A JSON merge patch of an object, or of its `status`."""
        return self.ask(
            "PATCH", self.path(what) + (f"/{below}" if below else ""), change, "application/merge-patch+json"
        )

    def until(self, what: Object, holds: Any, limit_s: float = 60) -> Object:
        """The object, as soon as `holds(object)`; not being there yet counts as no."""

        def look() -> Object | None:
            try:
                found = self.ask("GET", self.path(what))
            except Refused as error:
                if error.status == 404:
                    return None
                raise
            return found if holds(found) else None

        return until(look, limit_s)


def condition(found: Object, kind: str) -> Object:
    """A condition of an object's status by its type; empty where it has none."""
    return next((row for row in found.get("status", {}).get("conditions", []) if row["type"] == kind), {})


def _named(version: str, kind: str, name: str, namespace: str) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def _without_name(what: Object) -> Object:
    return {key: value for key, value in what.get("metadata", {}).items() if key != "name"}
