"""Addresses of networks, URLs, paths, versions."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from decimal import Decimal
from typing import Any

from fairlead.logs.kql.registry import family

fn = family("networks")

_V4 = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


def _v4(text: str) -> tuple[int, int] | None:
    """An address and its prefix."""
    address, slash, prefix = text.strip().partition("/")
    try:
        bits = int(prefix) if slash else 32
        return (
            (int(ipaddress.IPv4Address(".".join(str(int(p)) for p in address.split(".")))), bits)
            if 0 <= bits <= 32
            else None
        )
    except ValueError:
        return None


def _v6(text: str) -> tuple[int, int] | None:
    address, slash, prefix = text.strip().partition("/")
    try:
        if ":" not in address:
            four = _v4(text)
            return None if four is None else ((0xFFFF << 32) | four[0], 96 + four[1])
        head, _, four_text = address.rpartition(":")
        if "." in four_text:  # a v4 address in v6 notation
            four = _v4(four_text + slash + prefix)
            return None if four is None or head not in {":", "::ffff"} else ((0xFFFF << 32) | four[0], 96 + four[1])
        bits = int(prefix) if slash else 128
        return (int(ipaddress.IPv6Address(address)), bits) if 0 <= bits <= 128 else None
    except ValueError:
        return None


def _compared(a: Any, b: Any, prefix: int, bits: int) -> int | None:
    """-1, 0, 1: both under the shortest of all prefixes."""
    if a is None or b is None or not 0 <= prefix <= bits:
        return None
    shift = bits - min(a[1], b[1], prefix)
    one, two = a[0] >> shift, b[0] >> shift
    return int(one > two) - int(one < two)


@fn("parse_ipv4", "string -> long")
def parse_ipv4(text: str) -> int | None:
    found = _v4(text)
    return None if found is None else int(found[0] & ~((1 << (32 - found[1])) - 1))


@fn("parse_ipv4_mask", "string long -> long")
def parse_ipv4_mask(text: str, prefix: int) -> int | None:
    found = _v4(text)
    return None if found is None or not 0 <= prefix <= 32 else found[0] & ~((1 << (32 - min(prefix, found[1]))) - 1)


@fn("parse_ipv6", "string -> string")
def parse_ipv6(text: str) -> str | None:
    found = _v6(text)
    return None if found is None else ipaddress.IPv6Address(found[0] & ~((1 << (128 - found[1])) - 1)).exploded


@fn("parse_ipv6_mask", "string long -> string")
def parse_ipv6_mask(text: str, prefix: int) -> str | None:
    found = _v6(text)
    if found is None or not 0 <= prefix <= 128:
        return None
    return ipaddress.IPv6Address(found[0] & ~((1 << (128 - min(prefix, found[1]))) - 1)).exploded


@fn("ipv4_compare", "string string long? -> long")
def ipv4_compare(a: str, b: str, prefix: int = 32) -> int | None:
    return _compared(_v4(a), _v4(b), prefix, 32)


@fn("ipv4_is_match", "string string long? -> bool")
def ipv4_is_match(a: str, b: str, prefix: int = 32) -> bool | None:
    found = _compared(_v4(a), _v4(b), prefix, 32)
    return None if found is None else found == 0


@fn("ipv6_compare", "string string long? -> long")
def ipv6_compare(a: str, b: str, prefix: int = 128) -> int | None:
    return _compared(_v6(a), _v6(b), prefix, 128)


@fn("ipv6_is_match", "string string long? -> bool")
def ipv6_is_match(a: str, b: str, prefix: int = 128) -> bool | None:
    found = _compared(_v6(a), _v6(b), prefix, 128)
    return None if found is None else found == 0


@fn("ipv4_is_in_range", "string string -> bool")
def ipv4_is_in_range(a: str, net: str) -> bool | None:
    return _inside(_v4(a), _v4(net), 32)


@fn("ipv6_is_in_range", "string string -> bool")
def ipv6_is_in_range(a: str, net: str) -> bool | None:
    return _inside(_v6(a), _v6(net), 128)


def _inside(a: Any, net: Any, bits: int) -> bool | None:
    return None if a is None or net is None else bool(a[0] >> (bits - net[1]) == net[0] >> (bits - net[1]))


def _any(test: Any, a: str, nets: tuple[Any, ...]) -> bool | None:
    flat = [str(n) for net in nets for n in (net if isinstance(net, list) else [net])]
    found = [test(a, net) for net in flat]
    return None if all(f is None for f in found) else any(found)


@fn("ipv4_is_in_any_range", "string any+ -> bool")
def ipv4_is_in_any_range(a: str, *nets: Any) -> bool | None:
    return _any(ipv4_is_in_range, a, nets)


@fn("ipv6_is_in_any_range", "string any+ -> bool")
def ipv6_is_in_any_range(a: str, *nets: Any) -> bool | None:
    return _any(ipv6_is_in_range, a, nets)


@fn("ipv4_is_private", "string -> bool")
def ipv4_is_private(text: str) -> bool | None:
    found = _v4(text)
    if found is None:
        return None
    return any(
        _inside(found, _v4(net), 32) and found[1] >= int(net.split("/")[1])
        for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
    )


@fn("ipv4_netmask_suffix", "string -> long")
def ipv4_netmask_suffix(text: str) -> int | None:
    found = _v4(text)
    return None if found is None else found[1]


@fn("format_ipv4", "any long? -> string")
def format_ipv4(value: Any, prefix: int = 32) -> str | None:
    found = _any_v4(value, prefix)
    return "" if found is None else str(ipaddress.IPv4Address(found[0]))


@fn("format_ipv4_mask", "any long? -> string")
def format_ipv4_mask(value: Any, prefix: int = 32) -> str | None:
    found = _any_v4(value, prefix)
    return "" if found is None else f"{ipaddress.IPv4Address(found[0])}/{found[1]}"


def _any_v4(value: Any, prefix: int) -> tuple[int, int] | None:
    if not 0 <= prefix <= 32:
        return None
    if isinstance(value, str):
        found = _v4(value)
        if found is None:
            return None
        number, bits = found[0], min(found[1], prefix)
    elif isinstance(value, int) and 0 <= value < 1 << 32:
        number, bits = value, prefix
    else:
        return None
    return number & ~((1 << (32 - bits)) - 1), bits


def _terms(text: str) -> list[str]:
    return [
        f[0]
        for f in _V4.finditer(text)
        if not text[f.end() : f.end() + 1].isalnum() and not text[max(f.start() - 1, 0) : f.start()].isalnum()
    ]


@fn("has_ipv4", "string string -> bool")
def has_ipv4(text: str, address: str) -> bool | None:
    found = _v4(address)
    return False if found is None else any(_v4(term) == found for term in _terms(text))


@fn("has_any_ipv4", "string any+ -> bool")
def has_any_ipv4(text: str, *addresses: Any) -> bool | None:
    return _any(has_ipv4, text, addresses)


@fn("has_ipv4_prefix", "string string -> bool")
def has_ipv4_prefix(text: str, prefix: str) -> bool | None:
    return any(
        _v4(term) and (term == prefix or (prefix.endswith(".") and term.startswith(prefix))) for term in _terms(text)
    )


@fn("has_any_ipv4_prefix", "string any+ -> bool")
def has_any_ipv4_prefix(text: str, *prefixes: Any) -> bool | None:
    return _any(has_ipv4_prefix, text, prefixes)


@fn("parse_url parseurl", "string -> dynamic")
def parse_url(text: str) -> Any:
    try:
        parts = urllib.parse.urlsplit(text)
        port = parts.port
    except ValueError:
        parts, port = urllib.parse.urlsplit(""), None
    return {
        "Scheme": parts.scheme,
        "Host": parts.hostname or "",
        "Port": "" if port is None else str(port),
        "Path": parts.path,
        "Username": parts.username or "",
        "Password": parts.password or "",
        "Query Parameters": _query(parts.query),
        "Fragment": parts.fragment,
    }


def _query(text: str) -> dict[str, str]:
    return {key: value for pair in text.split("&") if pair for key, _, value in [pair.partition("=")]}


@fn("parse_urlquery parseurlquery", "string -> dynamic")
def parse_urlquery(text: str) -> Any:
    return {"Query Parameters": _query(text.lstrip("?"))}


@fn("parse_path", "string -> dynamic")
def parse_path(text: str) -> Any:
    """Of Windows, of Unix, or of a URL's scheme."""
    path, stream = text, ""
    scheme, found, rest = path.partition("://")
    scheme, path = (scheme, rest) if found else ("", path)
    root = path[:2] if re.match(r"[A-Za-z]:", path) else ""
    colon = path.rfind(":")
    if colon > max(path.rfind("\\"), path.rfind("/"), 1):
        path, stream = path[:colon], path[colon + 1 :]
    cut = max(path.rfind("\\"), path.rfind("/"))
    folder, name = (path[:cut], path[cut + 1 :]) if cut >= 0 else ("", path)
    _, dot, extension = name.rpartition(".")
    return {
        "Scheme": scheme,
        "RootPath": root,
        "DirectoryPath": folder,
        "DirectoryName": re.split(r"[\\/]", folder)[-1] if folder else "",
        "Filename": name,
        "Extension": extension if dot else "",
        "AlternateDataStreamName": stream,
    }


@fn("parse_version", "string -> decimal")
def parse_version(text: str) -> Decimal | None:
    """Up to four parts, each of eight digits."""
    parts = text.split(".")
    if not 1 <= len(parts) <= 4 or not all(re.fullmatch(r"\d{1,8}", p) for p in parts):
        return None
    digits = "".join(p.zfill(8) for p in [*parts, *["0"] * (4 - len(parts))])
    return Decimal(int(digits))
