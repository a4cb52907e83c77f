"""Texts: counted in characters, searched, cut, replaced, encoded."""

from __future__ import annotations

import base64
import binascii
import gzip
import hashlib
import io
import re
import urllib.parse
import uuid
import zlib
from typing import Any

from fairlead.logs.kql.kinds import Kind
from fairlead.logs.kql.regexes import pattern
from fairlead.logs.kql.registry import family
from fairlead.logs.kql.texts import scalar_text, text_of

fn = family("strings")


@fn("strlen", "text -> long")
def strlen(text: str) -> int:
    return len(text)


@fn("string_size", "text -> long")
def string_size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


@fn("toupper", "text -> string")
def toupper(text: str) -> str:
    return text.upper()


@fn("tolower", "text -> string")
def tolower(text: str) -> str:
    return text.lower()


@fn("reverse", "text -> string")
def reverse(text: str) -> str:
    return text[::-1]


@fn("strcat", "text+ -> string")
def strcat(*texts: str) -> str:
    return "".join(texts)


@fn("strcat_delim", "text text text+ -> string")
def strcat_delim(delimiter: str, *texts: str) -> str:
    return delimiter.join(texts)


@fn("strcat_array array_strcat", "array text -> string", strict=False)
def strcat_array(items: Any, delimiter: str) -> str:
    return delimiter.join(scalar_text(item) for item in items) if isinstance(items, list) else ""


@fn("strrep", "text long text? -> string")
def strrep(text: str, num: int, delimiter: str = "") -> str | None:
    """At most 1024 times, as Kusto has it."""
    return delimiter.join([text] * num) if 0 <= num <= 1024 else None


@fn("strcmp", "text text -> long")
def strcmp(a: str, b: str) -> int:
    return (a > b) - (a < b)


@fn("substring", "text long long? -> string")
def substring(text: str, start: int, num: int | None = None) -> str:
    """From a place that counts from the end where it is negative."""
    begin = len(text) + start if start < 0 else start
    if begin < 0:
        return ""
    return text[begin:] if num is None else text[begin : begin + num] if num > 0 else ""


@fn("indexof", "text text long? long? long? -> long")
def indexof(text: str, needle: str, start: int = 0, length: int = -1, occurrence: int = 1) -> int | None:
    if occurrence < 1 or length < -1 or not needle:
        return None
    begin = max(len(text) + start, 0) if start < 0 else start
    end = len(text) if length == -1 else min(len(text), begin + length)
    at = begin - 1
    for _ in range(occurrence):
        at = text.find(needle, at + 1, end)
        if at < 0:
            return -1
    return at


@fn("indexof_regex", "text string long? long? long? -> long")
def indexof_regex(text: str, regex: str, start: int = 0, length: int = -1, occurrence: int = 1) -> int | None:
    if occurrence < 1 or length < -1 or start < 0:
        return None
    end = len(text) if length == -1 else min(len(text), start + length)
    for num, found in enumerate(pattern(regex).finditer(text[:end], start), 1):
        if num == occurrence:
            return found.start()
    return -1


@fn("countof", "string string string? -> long")
def countof(text: str, needle: str, kind: str = "normal") -> int | None:
    """Plain needles may overlap, matches of patterns do not."""
    if kind == "regex":
        return sum(1 for _ in pattern(needle).finditer(text))
    if not needle:
        return 0
    at, num = text.find(needle), 0
    while at >= 0:
        num += 1
        at = text.find(needle, at + 1)
    return num


@fn("replace_string", "string string string -> string")
def replace_string(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


@fn("replace_strings", "string array array -> string")
def replace_strings(text: str, olds: Any, news: Any) -> str:
    for old, new in zip(olds, news, strict=False):
        text = replace_string(text, scalar_text(old), scalar_text(new))
    return text


_GROUP = re.compile(r"\\(\d)")


@fn("replace_regex replace", "string string string -> string")
def replace_regex(text: str, regex: str, rewrite: str) -> str:
    r"""`\1` in the rewrite is what the first group found; `\0` all of it."""

    def made(found: re.Match[str]) -> str:
        def group(number: re.Match[str]) -> str:
            place = int(number[1])
            return (found[place] or "") if place <= found.re.groups else ""

        return _GROUP.sub(group, rewrite).replace("\\\\", "\\")

    return pattern(regex).sub(made, text)


@fn("translate", "string string string -> string")
def translate(old: str, new: str, text: str) -> str:
    if not new:
        return "".join(c for c in text if c not in old)
    new = new.ljust(len(old), new[-1])
    return text.translate({ord(a): b for a, b in reversed(list(zip(old, new, strict=False)))})


def _trims(name: str, before: bool, after: bool) -> None:
    @fn(name, "string string -> string")
    def trim(regex: str, text: str) -> str:
        if before:
            start = pattern(f"^(?:{regex})").match(text)
            text = text[start.end() :] if start else text
        if after:
            for found in pattern(f"(?:{regex})$").finditer(text):
                return text[: found.start()]
        return text


_trims("trim", before=True, after=True)
_trims("trim_start", before=True, after=False)
_trims("trim_end", before=False, after=True)


@fn("split", "text string long? -> dynamic")
def split(text: str, delimiter: str, index: int | None = None) -> Any:
    parts = text.split(delimiter) if delimiter else [text]
    if index is None:
        return parts
    return [parts[index]] if 0 <= index < len(parts) else None


@fn("extract", "string long string typeof? -> string")
def extract(regex: str, group: int, text: str) -> Any:
    found = pattern(regex).search(text)
    return (found[group] or "") if found and 0 <= group <= found.re.groups else ""


@fn("extract_all extractall", "string dynamic_or_string string? -> dynamic", strict=True, kinds=True)
def extract_all(kinds: tuple[Kind, ...], regex: str, *rest: Any) -> Any:
    """Every match: its groups, all or those that are named; one group alone stands without a list around it."""
    groups, text = (rest[0], rest[1]) if len(rest) == 2 else (None, rest[0])
    text = scalar_text(text)
    made = pattern(regex)
    wanted = (
        [(made.groupindex.get(g, 0) if isinstance(g, str) else g) for g in groups]
        if groups
        else list(range(1, made.groups + 1))
    )
    if not made.groups or any(not 0 <= g <= made.groups for g in wanted):
        return None
    found = [[match[g] or "" for g in wanted] for match in made.finditer(text)]
    if not found:
        return None
    return [groups_[0] for groups_ in found] if len(wanted) == 1 else found


@fn("matches_regex", "string string -> bool")
def matches_regex(text: str, regex: str) -> bool:
    return bool(pattern(regex).search(text))


@fn("regex_quote", "text -> string")
def regex_quote(text: str) -> str:
    return re.sub(r"([^A-Za-z0-9_])", r"\\\1", text)


@fn("has_any_index", "string array -> long")
def has_any_index(text: str, needles: Any) -> int:
    from fairlead.logs.kql.functions.operators import has

    low = text.lower()
    return next((at for at, needle in enumerate(needles) if has(low, scalar_text(needle).lower())), -1)


@fn("parse_csv", "text -> dynamic")
def parse_csv(text: str) -> list[str]:
    import csv

    return next(csv.reader(io.StringIO(text)), [""]) if text else [""]


@fn("parse_command_line", "text string -> dynamic")
def parse_command_line(text: str, flavour: str) -> Any:
    """By the rules of Windows: quotes group, a backslash escapes only quotes."""
    if flavour != "windows" or not text:
        return None
    words = re.findall(r'((?:"(?:[^"\\]|\\.|"")*"|[^\s"])+)', text)
    return [re.sub(r'(?<!\\)"', "", word).replace('\\"', '"') for word in words]


@fn("url_encode", "string -> string")
def url_encode(text: str) -> str:
    return urllib.parse.quote_plus(text, safe="-_.!*()")


@fn("url_encode_component", "string -> string")
def url_encode_component(text: str) -> str:
    return urllib.parse.quote(text, safe="-_.~")


@fn("url_decode", "string -> string")
def url_decode(text: str) -> str:
    return urllib.parse.unquote_plus(text)


@fn("base64_encode_tostring base64_encodestring", "string -> string")
def base64_encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None


@fn("base64_decode_tostring base64_decodestring", "string -> string")
def base64_decode(text: str) -> str | None:
    raw = _base64(text)
    try:
        return raw.decode() if raw is not None else ""
    except UnicodeDecodeError:
        return ""


@fn("base64_decode_toarray", "string -> dynamic")
def base64_decode_array(text: str) -> Any:
    raw = _base64(text)
    return None if raw is None else list(raw)


@fn("base64_encode_fromarray", "array -> string")
def base64_encode_array(items: Any) -> str | None:
    try:
        return base64.b64encode(bytes(items)).decode()
    except (TypeError, ValueError):
        return None


@fn("base64_decode_toguid", "string -> guid")
def base64_decode_guid(text: str) -> str | None:
    raw = _base64(text)
    return str(uuid.UUID(bytes_le=raw)) if raw is not None and len(raw) == 16 else None


@fn("base64_encode_fromguid", "guid -> string")
def base64_encode_guid(value: str) -> str:
    return base64.b64encode(uuid.UUID(value).bytes_le).decode()


MAX_UNPACKED = 64 << 20
"""Bytes that a compressed text may become."""


def _unpacked(text: str, bits: int) -> str | None:
    raw = _base64(text)
    if raw is None:
        return None
    try:
        made = zlib.decompressobj(bits).decompress(raw, MAX_UNPACKED)
        return made.decode()
    except (zlib.error, UnicodeDecodeError):
        return None


@fn("zlib_decompress_from_base64_string", "string -> string")
def zlib_decompress(text: str) -> str | None:
    return _unpacked(text, 15)


@fn("gzip_decompress_from_base64_string", "string -> string")
def gzip_decompress(text: str) -> str | None:
    return _unpacked(text, 31)


@fn("zlib_compress_to_base64_string", "string -> string")
def zlib_compress(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


@fn("gzip_compress_to_base64_string", "string -> string")
def gzip_compress(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


@fn("to_utf8 unicode_codepoints_from_string", "text -> dynamic")
def codepoints(text: str) -> list[int]:
    return [ord(char) for char in text]


@fn("make_string unicode_codepoints_to_string", "any+ -> string")
def make_string(*parts: Any) -> str | None:
    flat = [item for part in parts for item in (part if isinstance(part, list) else [part])]
    try:
        return "".join(chr(code) for code in flat)
    except (ValueError, TypeError, OverflowError):
        return None


def _hashes(name: str, algorithm: str) -> None:
    @fn(name, "any -> string", strict=False, kinds=True)
    def hashed(kinds: tuple[Kind, ...], value: Any) -> str:
        return hashlib.new(algorithm, text_of(value, kinds[0]).encode(), usedforsecurity=False).hexdigest()


for _name, _algorithm in {"hash_sha256": "sha256", "hash_sha1": "sha1", "hash_md5": "md5"}.items():
    _hashes(_name, _algorithm)


_MASK = (1 << 64) - 1
_P = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)


def _rotl(x: int, num: int) -> int:
    return ((x << num) | (x >> (64 - num))) & _MASK


def _round(acc: int, lane: int) -> int:
    return _rotl((acc + lane * _P[1]) & _MASK, 31) * _P[0] & _MASK


def xxhash64(data: bytes, seed: int = 0) -> int:
    """https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md"""
    length, at = len(data), 0
    if length >= 32:
        acc = [(seed + _P[0] + _P[1]) & _MASK, (seed + _P[1]) & _MASK, seed, (seed - _P[0]) & _MASK]
        while at + 32 <= length:
            acc = [_round(a, int.from_bytes(data[at + 8 * i : at + 8 * i + 8], "little")) for i, a in enumerate(acc)]
            at += 32
        value = (_rotl(acc[0], 1) + _rotl(acc[1], 7) + _rotl(acc[2], 12) + _rotl(acc[3], 18)) & _MASK
        for a in acc:
            value = ((value ^ _round(0, a)) * _P[0] + _P[3]) & _MASK
    else:
        value = (seed + _P[4]) & _MASK
    value = (value + length) & _MASK
    while at + 8 <= length:
        value = (_rotl(value ^ _round(0, int.from_bytes(data[at : at + 8], "little")), 27) * _P[0] + _P[3]) & _MASK
        at += 8
    if at + 4 <= length:
        lane = int.from_bytes(data[at : at + 4], "little")
        value = (_rotl(value ^ (lane * _P[0] & _MASK), 23) * _P[1] + _P[2]) & _MASK
        at += 4
    for byte in data[at:]:
        value = _rotl(value ^ (byte * _P[4] & _MASK), 11) * _P[0] & _MASK
    value = (value ^ (value >> 33)) * _P[1] & _MASK
    value = (value ^ (value >> 29)) * _P[2] & _MASK
    return value ^ (value >> 32)


@fn("hash hash_xxhash64", "string long? -> long")
def hashed(text: str, modulo: int | None = None) -> int | None:
    """Of a text alone: how Kusto lays out other kinds for the hash is not published."""
    value = xxhash64(text.encode())
    signed = value - (1 << 64) if value >> 63 else value
    if modulo is None:
        return signed
    return signed % modulo if modulo > 0 else None


@fn("new_guid", "-> guid", pure=False)
def new_guid() -> str:
    return str(uuid.uuid4())
