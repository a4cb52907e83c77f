"""Seals whose state lies on cards, for compiled code and for what Python still has to seal or open itself."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from fairlead.fabric.transport.fast import gcm, kernels
from fairlead.fabric.transport.fast import layout as at
from fairlead.fabric.transport.fast.desk import Desk, Words, address_of
from fairlead.fabric.transport.seal import WINDOW, Directions, Seal, Seals, key_of

_SCRATCH_BYTES = 64


class FastSeal(Seal):
    """One direction, of which compiled code does the most."""

    def __init__(self, token: bytes, sender: bytes, receiver: bytes) -> None:
        super().__init__(token, sender, receiver)
        self.card: Words = np.zeros(at.NUM_SEAL_WORDS, dtype=np.int64)
        self.card_address = address_of(self.card)
        self._scratch = np.zeros(_SCRATCH_BYTES, dtype=np.uint8)
        self._window: Words = np.zeros(WINDOW // 32, dtype=np.int64)
        context = _context(key_of(token, sender, receiver))
        weakref.finalize(self, kernels.gcm_functions()["EVP_CIPHER_CTX_free"], context)
        self.card[at.L_CONTEXT], self.card[at.L_NONCE] = context, address_of(self._scratch)
        self.card[at.L_SEEN], self.card[at.L_HIGHEST] = address_of(self._window), -1

    def _take_number(self) -> int:
        number = int(self.card[at.L_NEXT])
        self.card[at.L_NEXT] += 1
        return number

    def _is_new(self, number: int) -> bool:
        return bool(gcm.is_new(self._window, self.card, number))


class FastSeals(Seals):
    """The seals of a context whose bursts are compiled."""

    def _make(self, token: bytes, here: bytes, there: bytes) -> Directions:
        return Directions(FastSeal(token, here, there), FastSeal(token, there, here))


def seals(desk: Desk) -> Seals:
    """Compiled ones where OpenSSL is a shared library; the addresses of its functions go to the desk."""
    functions = kernels.gcm_functions()
    if not functions:
        return Seals()
    for place, name in _PLACES:
        desk.words[place] = ctypes.cast(functions[name], ctypes.c_void_p).value or 0
    return FastSeals()


_PLACES = (
    (at.K_GCM_INIT, "EVP_EncryptInit_ex"),
    (at.K_GCM_UPDATE, "EVP_EncryptUpdate"),
    (at.K_GCM_FINAL, "EVP_EncryptFinal_ex"),
    (at.K_GCM_CONTROL, "EVP_CIPHER_CTX_ctrl"),
)


def _context(key: bytes) -> int:
    """OpenSSL's context of AES-256-GCM under a key; the nonce is 12 bytes, as OpenSSL has it by itself."""
    functions = kernels.gcm_functions()
    context: int = functions["EVP_CIPHER_CTX_new"]()
    if not context or not functions["EVP_EncryptInit_ex"](context, functions["EVP_aes_256_gcm"](), None, key, None):
        raise MemoryError("OpenSSL has no room for a cipher")
    return context
