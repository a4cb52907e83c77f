"""What `ssh_options` may say: settings of ssh_config(5), one each. Pure.

They are code: ProxyCommand and LocalCommand are run on this machine. Two things they may not do. A node is reached with
keys, never given them, so nothing is forwarded to it. And who a node is, is decided by the user's own known hosts, as
strictly as the user's own configuration says or more so; to be less strict is the user's decision, and stands there.
"""

from __future__ import annotations

import re

ALWAYS = (
    "ForwardAgent=no",
    "GSSAPIDelegateCredentials=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "Tunnel=no",
)
"""What no configuration changes: a node that was broken into must not get at the keys that open all others."""

_BREAKS = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
_SETTING = re.compile(r"([A-Za-z][A-Za-z0-9]*)(?:\s*=\s*|\s+)(\S.*)")
_FORWARDS = {
    "forwardagent", "gssapidelegatecredentials", "forwardx11", "forwardx11trusted", "localforward", "remoteforward",
    "dynamicforward", "clearallforwardings", "tunnel", "permitremoteopen", "streamlocalbindunlink",
}  # fmt: skip
_LOOSER = {
    "stricthostkeychecking": {"no", "off", "accept-new"},
    "verifyhostkeydns": {"yes"},
    "nohostauthenticationforlocalhost": {"yes"},
}
"""Settings, and the values with which a stranger may pass for a node."""
_ELSEWHERE = {"include", "match", "host", "ignoreunknown"}
"""What would bring settings from where nobody looks."""


def wrong_option(option: str) -> tuple[str, str] | None:
    """What is wrong with one setting, and what to do; None where nothing is.

    >>> wrong_option("Port=2222"), wrong_option("StrictHostKeyChecking no")[0]
    (None, '`StrictHostKeyChecking` would let a stranger pass for a node')
    """
    if _BREAKS.search(option):
        return "a setting of ssh holds a line break or another control character", "one setting in each string"
    found = _SETTING.fullmatch(option)
    if found is None:
        return f"{option!a} is no setting of ssh", 'write "Port=2222", each in a string of its own'
    name, value = found[1], found[2].strip().strip('"').lower()
    word = name.lower()
    if word in _FORWARDS:
        return f"`{name}` is fairlead's to set: nothing is forwarded to nodes", "leave it out"
    if value.split()[0] in _LOOSER.get(word, ()):
        return f"`{name}` would let a stranger pass for a node", "if that is to be, say it in your own ~/.ssh/config"
    if word in _ELSEWHERE:
        return f"`{name}` is no setting for one command", "write the settings themselves"
    return None
