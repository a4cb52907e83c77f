"""Secrets in text: what looks like one, by the name it stands under or by its own form, and the text without it.

    >>> hide("env HF_TOKEN=hf_x login --password hunter2 https://ann:pw@host/x?sig=Ab%2F&se=2")
    'env HF_TOKEN=<redacted> login --password <redacted> https://<redacted>@host/x?sig=<redacted>&se=2'

Two ways lead to a secret: a name that promises one (`WANDB_API_KEY=`, `--token`, `"password":`), and the form that its
maker gives it so that it can be found (`hf_...`, `ghp_...`, a key in PEM). What has neither, such as a password in the
middle of a sentence, is not found. Where a name begins its line, its value is the whole rest of the line: a value may
hold blanks, and what is lost of a command behind it is lost on the safe side. The time
taken grows with the length of the text and no faster.
"""

from __future__ import annotations

import functools
import re

HIDDEN = "<redacted>"

_MAX_NAME = 80
_NAME = re.compile(
    r"token(?!iz)|secret|passw|passphrase|credential|jwt|api[_-]?key|authorization|connection[_-]?string|pgpass|sshpass"
    r"|(?:account|access|secret|private|shared|storage|encryption|signing|master|session|service|subscription)[_-]?key"
    r"|_(?:key|pass|pwd|auth|sas|sig|pat|dsn|cookie)\Z|\A(?:key|sig|sas|dsn|cookie|set-cookie|x-[a-z-]+-key)\Z"
)
_HARMLESS = re.compile(
    r"tokens\Z|[_-]?(?:file|path|dir|name|id|type|url|uri|ttl|size|num|count|len|length|max|min|mode|expiry|expires)\Z"
    r"|\A(?:[a-z]_?key|num_.*|max_.*|public.*)\Z"
)
_NEEDS_EQUALS = {"key", "sig", "sas", "dsn"}
"""Words that anybody may write before a colon."""

# a word begins where no other goes on; in JSON, a line break before it is written as a letter
_BEGINS = r"(?:(?<![\w.\\-])|(?<=\\[nrt]))"
# a name, at once, and what stands between it and its value; the value is read behind it
_BEFORE = re.compile(
    _BEGINS + r"(--?)?([A-Za-z_][\w.-]{0,79})(?![\w.-])"
    r"""(\\{0,7}["']?[ \t]{0,3}(?:[:=]|=>|:=)[ \t]{0,3}|\\{0,7}["']?,?[ \t]{1,3})"""
)
_VALUE = re.compile(
    r"""\"{3}(?s:.*?)(?:\"{3}|\Z)|'{3}(?s:.*?)(?:'{3}|\Z)|"""  # TOML, Python
    r"""\\{0,7}"(?:[^"\\\n]|\\[^"\n])*\\?"?|\\{0,7}'[^'\n]*'?|(?:[^\s"'&;\\]|\\[ ]|\\x[0-9A-Fa-f]{2})+"""
)
_LINE = re.compile(r"""\\{0,7}["']?[^\r\n"'\\]+""")
# a name that begins its line, as in files of variables and in YAML, has the whole line; behind a line break that is
# written as letters, up to the next one or the end of the string around it
_HEAD = re.compile(r"[ \t+-]*(?:(?:export|set|setenv|declare -x|ENV|ARG)[ \t]+)?")
_REST = re.compile(r"""(?!["'])[^\r\n]+""")
_REST_INSIDE = re.compile(r"""(?!["'])(?:[^\r\n"'\\]|\\(?![nrt"'\\]))+""")
_LONGEST_HEAD = 60
# NAME=value with a quote before the name: up to that quote
_INSIDE = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\.)+") for quote in "\"'"}
_INSIDE_ESCAPED = {quote: re.compile(rf"(?:[^{quote}\\\n]|\\(?!\\{{0,6}}{quote}))+") for quote in "\"'"}
_BLOCK = re.compile(r"[|>][-+0-9]{0,2}[ \t]{0,9}(?:#[^\n]*)?\r?\n")  # YAML
_ELEMENT = re.compile(r"<([A-Za-z_][\w.:-]{0,79})((?:[ \t][^<>]{0,200})?>)([^<]+)(?=</\1)")

_BOUNDARY = r"(?:(?<![\w-])|(?<=\\[nrt]))"
_MAKES = (
    r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{16}",  # Amazon
    r"AIza[\w-]{30,}|ya29\.[\w-]{10,}|GOCSPX-[\w-]{20,}",  # Google
    r"[\w~.]{3}\dQ~[\w~.-]{31,34}|[A-Za-z0-9+/]{86}==",  # Azure: applications, storage accounts
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}",  # GitHub
    r"gl[a-z]{2,6}-[\w.-]{15,}|GR1348941[\w-]{20,}",  # GitLab
    r"hf_[A-Za-z0-9]{10,}|api_org_[A-Za-z0-9]{10,}|nvapi-[\w-]{16,}|r8_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}",  # models
    r"sk-[\w-]{16,}|xai-[\w-]{20,}|pplx-[\w-]{20,}|wandb_[\w-]{20,}",
    r"[rs]k_(?:live|test)_[A-Za-z0-9]{10,}|whsec_[\w+/=-]{16,}|sq0[a-z]{3}-[\w-]{16,}",  # payments
    r"xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|\d{8,10}:[\w-]{35}|[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}",  # chats
    r"npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}|dckr_[a-z]{3}_[\w-]{16,}|AKC[A-Za-z0-9]{10,}",  # packages
    r"hv[sbr]\.[\w-]{20,}|glsa_\w{20,}|dop_v1_[0-9a-f]{30,}|dapi[0-9a-f]{32}|tskey-[\w-]{16,}|NRAK-[A-Z0-9]{20,}",
    r"SG\.[\w-]{16,}\.[\w-]{16,}|key-[0-9a-f]{32}|[0-9a-f]{32}-us\d{1,2}|(?:AC|SK)[0-9a-f]{32}",  # mail, telephone
    r"ATATT3[\w=-]{20,}|shp[a-z]{2}_[0-9a-fA-F]{20,}|lin_api_\w{20,}|PMAK-[\w-]{20,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}",
    r"eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)?",  # JSON Web Token: RFC 7519
    r"MUNGE:[A-Za-z0-9+/=]{16,}:?",
)
_FORMS = (
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----(?:[^-]|-(?!----))*(?:-----END [A-Z0-9 ]{0,60}-----)?",
    r"(?<=hooks\.slack\.com/services/)[\w/-]{10,}",
    r"(?<=Signature=)[A-Za-z0-9%/+=_-]{6,}",  # addresses and headers signed for Amazon and Google
    r"(?<=://)[^/\s:@\"'<>]{0,256}:[^/\s@\"'<>]{1,1024}(?=@)",
)
_SPOKEN = (
    r"((?i:bearer)\s{1,3})(?=[A-Za-z._~+/=-]{0,40}\d|\S{20})[\w.~+/=-]{8,}",
    r"((?i:basic)\s{1,3})(?=[a-z+/=]{0,40}[A-Z0-9])[A-Za-z0-9+/=]{8,}",
    _BEGINS + r"(login\s{1,3}\S{1,256}\s{1,3}password\s{1,3})\S+",  # netrc
    r"((?<!\S)(?:-u|--user)[ =][\"']?[^\s:'\"]{1,200}:)[^\s'\"]+",  # curl
    _BEGINS + r"(sshpass\s{1,3}-p\s{0,3})[^\s'\"]+",
)


def is_secret_name(name: str) -> bool:
    """Whether what stands under a name is to be kept to oneself.

    >>> [is_secret_name(n) for n in ("AWS_SECRET_ACCESS_KEY", "--token", "AccountKey", "p_key", "max_tokens")]
    [True, True, True, False, False]
    """
    word = name[: _MAX_NAME + 2].strip("-\"'").lower()
    return _NAME.search(word) is not None and _HARMLESS.search(word) is None


def holds_secret(text: str) -> bool:
    """Whether a text is, or holds, something that has the form of a secret, whatever its name."""
    return _forms().search(text) is not None


def hide(text: str) -> str:
    """The text without its secrets; what they were the value of, and the text around them, stay."""
    text = _forms().sub(HIDDEN, text)
    for said in _spoken():
        text = said.sub(rf"\1{HIDDEN}", text)
    text = _ELEMENT.sub(lambda e: f"<{e[1]}{e[2]}{HIDDEN}" if is_secret_name(e[1]) else e[0], text)
    return _hide_values(text)


def _hide_values(text: str) -> str:
    """Without the values of names that promise a secret."""
    parts, done, at = [], 0, 0
    while found := _BEFORE.search(text, at):
        flag, name, between = found.groups()
        at = found.end()
        is_assigned = any(mark in between for mark in ":=")
        if not is_secret_name(name) or (not is_assigned and not flag) or (not is_assigned and len(name) < 3):
            at = found.end(2)  # its value may be a name itself
            continue
        if name.lower() in _NEEDS_EQUALS and "=" not in between:
            continue
        if is_assigned and (block := _BLOCK.match(text, at)):
            done_at = _end_of_block(text, found.start(), block.end())
            if done_at > block.end():
                parts += [text[done : block.end()], HIDDEN, "\n"]
                done = at = done_at
                continue
        value = _kind_of_value(text, found, name, is_assigned=is_assigned).match(text, at)
        if value is None or not value[0].strip("\\\"'") or value[0].strip("\\\"'") == HIDDEN:
            continue
        quotes = re.match(r"""(\\{0,7}["'])?.*?(\\{0,7}["'])?\Z""", value[0], re.DOTALL)
        assert quotes is not None, "it matches anything"
        parts += [text[done:at], quotes[1] or "", HIDDEN, (quotes[2] or "") if quotes[1] else ""]
        done = at = value.end()
    return "".join([*parts, text[done:]]) if parts else text


def _kind_of_value(text: str, found: re.Match[str], name: str, *, is_assigned: bool) -> re.Pattern[str]:
    """How far the value of a name reaches, by what stands before the name."""
    start, between, at = found.start(), found[3], found.end()
    if not is_assigned:
        return _VALUE
    before = text[max(0, start - _LONGEST_HEAD) : start]
    if (quote := before[-1:]) in _INSIDE and not any(mark in between for mark in "\"'"):
        return (_INSIDE_ESCAPED if before[-2:-1] == "\\" else _INSIDE)[quote]
    if name.lower().endswith(("authorization", "cookie")):
        return _LINE
    if any(mark in between for mark in "\"'") or text[at : at + 1] in {'"', "'", "\\"}:
        return _VALUE
    cut = max(before.rfind("\n"), before.rfind("\r"))
    escaped = max(before.rfind(letters) for letters in ("\\n", "\\r", "\\t"))
    is_first = cut >= 0 or start <= _LONGEST_HEAD
    if escaped > cut and _HEAD.fullmatch(before, escaped + 2):
        return _REST_INSIDE
    return _REST if is_first and _HEAD.fullmatch(before, cut + 1) else _VALUE


def _end_of_block(text: str, name_at: int, at: int) -> int:
    """Where a YAML block ends that begins at `at`: with the first line that stands no deeper than its name's."""
    line = text[text.rfind("\n", 0, name_at) + 1 : name_at]
    depth = len(line) - len(line.lstrip(" "))
    while at < len(text):
        end = text.find("\n", at) + 1 or len(text)
        own = text[at:end]
        if own.strip() and len(own) - len(own.lstrip(" ")) <= depth:
            break
        at = end
    return at


@functools.cache
def _forms() -> re.Pattern[str]:
    return re.compile("|".join([*_FORMS, f"{_BOUNDARY}(?:{'|'.join(_MAKES)})"]))


@functools.cache
def _spoken() -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(form) for form in _SPOKEN)
