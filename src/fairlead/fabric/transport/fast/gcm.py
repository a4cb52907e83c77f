"""AES-GMAC by OpenSSL over parts of a letter where they lie, and the window of counters that were seen (compiled).

The compiled form of `seal.Seal`. Nothing of the cipher is done here.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.mrc.compile import call_address
from fairlead.fabric.transport.fast.layout import *
from fairlead.fabric.transport.fast.memory import load8, load64, part, store32, store64, words_at
from fairlead.fabric.transport.seal import COUNTER_BYTES, NONCE_LEAD, SIZE_BYTES, TAG_BYTES, WINDOW

LEAD_BYTES = len(NONCE_LEAD)
GET_TAG = 0x10  # EVP_CTRL_AEAD_GET_TAG, openssl/evp.h
TAG_AT, MADE_AT = 16, 32  # in the scratch, behind the nonce: the tag, and a number that OpenSSL wants to write


@part
def begin(k: Any, s: Any, counter: int) -> None:
    """A new tag, under this counter."""
    store32(s[L_NONCE], 0)
    store64(s[L_NONCE] + LEAD_BYTES, counter)
    call_address(k[K_GCM_INIT], s[L_CONTEXT], 0, 0, 0, s[L_NONCE])


@part
def add(k: Any, s: Any, address: int, num_bytes: int) -> None:
    """Some more bytes that the tag is to cover."""
    if num_bytes > 0:
        call_address(k[K_GCM_UPDATE], s[L_CONTEXT], 0, s[L_NONCE] + MADE_AT, address, num_bytes)


@part
def end(k: Any, s: Any, to: int) -> None:
    """Write the tag."""
    call_address(k[K_GCM_FINAL], s[L_CONTEXT], s[L_NONCE] + TAG_AT, s[L_NONCE] + MADE_AT)
    call_address(k[K_GCM_CONTROL], s[L_CONTEXT], GET_TAG, TAG_BYTES, to)


@part
def is_new(seen: Any, s: Any, number: int) -> bool:
    """Enter a counter that came with a good tag; False if it was seen, or is too far behind to be told."""
    ahead = number - s[L_HIGHEST]
    if ahead > 0:
        if ahead >= WINDOW:
            for word in range(WINDOW >> 5):
                seen[word] = 0
        else:
            for i in range(s[L_HIGHEST] + 1, number + 1):
                seen[(i & WINDOW - 1) >> 5] &= ~(1 << (i & 31))
        s[L_HIGHEST] = number
    elif -ahead >= WINDOW or seen[(number & WINDOW - 1) >> 5] >> (number & 31) & 1:
        return False
    seen[(number & WINDOW - 1) >> 5] |= 1 << (number & 31)
    return True


@part
def open_letter(k: Any, letter: Any) -> bool:
    """Check the seal of a letter and take it off; False if it is forged, damaged, or was seen before."""
    s = words_at(letter[I_SEAL])
    length = letter[I_LENGTH] - SIZE_BYTES
    if length < 0:
        return False
    counter_at = letter[I_DATA] + length
    counter = load64(counter_at)
    begin(k, s, counter)
    add(k, s, letter[I_DATA], length)
    tag = s[L_NONCE] + TAG_AT
    end(k, s, tag)
    wrong = 0
    for i in range(TAG_BYTES):  # all of it, whatever the first bytes say
        wrong |= load8(tag + i) ^ load8(counter_at + COUNTER_BYTES + i)
    if wrong != 0 or not is_new(words_at(s[L_SEEN]), s, counter):
        return False
    letter[I_LENGTH] = length
    letter[I_SEAL] = SEAL_OPENED
    return True
