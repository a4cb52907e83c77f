"""Letters to the kernel and from it: struct mmsghdr filled, sendmmsg and recvmmsg called, addresses and classes read.

The compiled form of `Sockets.send` and `Sockets.receive`, with as many datagrams a call as go the same way.
"""

from __future__ import annotations

import errno
import socket
from typing import Any

from fairlead.fabric.mrc.compile import call_address
from fairlead.fabric.mrc.headers import Dscp
from fairlead.fabric.transport import batches as batch_rules
from fairlead.fabric.transport.batches import UDP_GRO, UDP_SEGMENT
from fairlead.fabric.transport.fast.layout import *
from fairlead.fabric.transport.fast.memory import load8, load16, load32, load64, part, words_at
from fairlead.fabric.transport.ports import DSCP_SHIFT, ECN_CE, ECN_MASK, IPV6_FLOWINFO, LOST_LOCALLY

MSG_DONTWAIT, MSG_TRUNC = int(socket.MSG_DONTWAIT), int(socket.MSG_TRUNC)
EAGAIN, EINTR = errno.EAGAIN, errno.EINTR
AGAIN = (-EINTR, -errno.ECONNREFUSED)  # this is news of an earlier packet (ICMP): the one in hand has not gone
LOST = tuple(sorted(LOST_LOCALLY))
AF_INET = int(socket.AF_INET)
IPV6_TCLASS, IP_TOS = int(socket.IPV6_TCLASS), int(socket.IP_TOS)
IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP = int(socket.IPPROTO_IP), int(socket.IPPROTO_IPV6), int(socket.IPPROTO_UDP)
NO_TRIM = int(Dscp.NO_TRIM)  # the class that sockets have by themselves
_fits = part(batch_rules.fits)
MAX_NEWS_OF_LOSS = 16  # errors of earlier packets that a socket tells before it gives datagrams


@part
def _call(x: Any, function: int, fd: int, hdrs: int, count: int) -> int:
    """How many datagrams the kernel took or gave; below zero: the negative errno."""
    if function == X_SENDMMSG:
        done = call_address(x[X_SENDMMSG], fd, hdrs, count, MSG_DONTWAIT)
    else:
        done = call_address(x[X_RECVMMSG], fd, hdrs, count, MSG_DONTWAIT, 0)
    done = (done & 0x7FFFFFFF) - (done & 0x80000000)  # a C int
    return done if done >= 0 else -load8(call_address(x[X_ERRNO]))


@part
def _order(k: Any, x: Any) -> None:
    """Put the letters of one socket one behind the other; X_COUNTS then says where the next socket's begin."""
    counts = words_at(x[X_COUNTS])
    for s in range(x[X_NUM_SOCKETS] + 1):
        counts[s] = 0
    for i in range(k[K_NUM_OUT]):
        counts[words_at(k[K_OUT] + i * OUT_ROW * WORD)[O_SOCKET] + 1] += 1
    for s in range(x[X_NUM_SOCKETS]):
        counts[s + 1] += counts[s]
    for i in range(k[K_NUM_OUT]):
        o = words_at(k[K_OUT] + i * OUT_ROW * WORD)
        words_at(x[X_ORDER])[counts[o[O_SOCKET]]] = i
        counts[o[O_SOCKET]] += 1
        words_at(x[X_HELD])[i] = 0


@part
def _letter(k: Any, x: Any, place: int) -> Any:
    return words_at(k[K_OUT] + words_at(x[X_ORDER])[place] * OUT_ROW * WORD)


@part
def _size(o: Any) -> int:
    return o[O_HEAD_LENGTH] + o[O_DATA_LENGTH] + o[O_TAIL_LENGTH]


@part
def _end_of_batch(k: Any, x: Any, place: int, end: int) -> int:
    """Behind the ordered letters that may go as one with the one at `place`."""
    first = _letter(k, x, place)
    size = _size(first)
    last, num = size, 1
    while place + num < end:
        o = _letter(k, x, place + num)
        if o[O_ROUTES] != first[O_ROUTES] or o[O_SLOT] != first[O_SLOT] or o[O_DSCP] != first[O_DSCP]:
            break
        if not _fits(size, last, num, _size(o)):
            break
        last = _size(o)
        num += 1
    return place + num


@part
def _address(k: Any, x: Any) -> None:
    """Fill a struct mmsghdr for each letter or batch; X_COUNTS then says where the next socket's begin."""
    _order(k, x)
    counts = words_at(x[X_COUNTS])
    place, num = 0, 0
    iov = x[X_OUT_IOVS]
    for s in range(x[X_NUM_SOCKETS]):
        while place < counts[s]:
            o = _letter(k, x, place)
            route = words_at(o[O_ROUTES] + o[O_SLOT] * ROUTE_ROW * WORD)
            h = words_at(x[X_OUT_HDRS] + num * HDR_ROW * WORD)
            v4 = NUM_CLASSES if route[ROUTE_FAMILY] == AF_INET else 0
            control = x[X_OUT_CONTROLS] + (v4 + o[O_DSCP]) * CLASS_ROW
            end = _end_of_batch(k, x, place, counts[s]) if x[X_GSO] else place + 1
            h[HDR_NAME], h[HDR_NAME_LENGTH] = route[ROUTE_NAME], route[ROUTE_NAME_LENGTH]
            h[HDR_CONTROL], h[HDR_CONTROL_LENGTH] = 0, 0
            if o[O_DSCP] != NO_TRIM:
                h[HDR_CONTROL], h[HDR_CONTROL_LENGTH] = control, CMSG_HEAD + 8
            if end > place + 1:
                h[HDR_CONTROL], h[HDR_CONTROL_LENGTH] = x[X_OUT_BATCHES] + num * BATCH_ROW, BATCH_ROW
                _mark_batch(words_at(h[HDR_CONTROL]), words_at(control), _size(o))
            words_at(x[X_FIRST])[num] = place
            h[HDR_IOV] = iov
            while place < end:
                iov = _parts(k, iov, _letter(k, x, place), words_at(x[X_ORDER])[place])
                place += 1
            h[HDR_NUM_IOV] = (iov - h[HDR_IOV]) // (IOV_ROW * WORD)
            h[HDR_FLAGS] = 0
            num += 1
        counts[s] = num
    words_at(x[X_FIRST])[num] = place


@part
def _mark_batch(batch: Any, control: Any, size: int) -> None:
    """Control messages of a batch: its class, and the size that the kernel cuts it into."""
    for i in range(3):
        batch[i] = control[i]
    batch[3] = CMSG_HEAD + 2
    batch[4] = UDP_SEGMENT << 32 | IPPROTO_UDP
    batch[5] = size


@part
def _parts(k: Any, at: int, o: Any, i: int) -> int:
    """Name the parts of a letter; where the next iovec goes."""
    head = k[K_HEADS] + i * HEAD_ROOM
    iov = words_at(at)
    iov[0], iov[1] = head, o[O_HEAD_LENGTH]
    n = 2
    if o[O_DATA_LENGTH] > 0:
        iov[2], iov[3] = o[O_DATA], o[O_DATA_LENGTH]
        n = 4
    iov[n], iov[n + 1] = head + TAIL_AT, o[O_TAIL_LENGTH]
    return at + (n + 2) * WORD


@part
def post(k: Any, x: Any) -> int:
    """Send all letters; how many found no room (X_HELD says which), or a negative errno that nobody foresaw."""
    _address(k, x)
    held = 0
    num = 0
    counts, first = words_at(x[X_COUNTS]), words_at(x[X_FIRST])
    for s in range(x[X_NUM_SOCKETS]):
        end = counts[s]
        while num < end:
            hdrs = x[X_OUT_HDRS] + num * HDR_ROW * WORD
            done = _call(x, X_SENDMMSG, words_at(x[X_FDS])[s], hdrs, end - num)
            if done >= 0:
                for n in range(num, num + done):
                    x[X_NUM_BATCHES] += 1 if first[n + 1] - first[n] > 1 else 0
                num += done
            elif done == -EAGAIN:
                for place in range(first[num], first[end]):
                    words_at(x[X_HELD])[words_at(x[X_ORDER])[place]] = 1
                held += first[end] - first[num]
                num = end
            elif done in AGAIN:
                continue
            elif -done in LOST:
                x[X_NUM_LOST] += first[num + 1] - first[num]
                num += 1
            else:
                return done
    return held


@part
def collect(k: Any, x: Any, fd: int, rail: int, count: int, is_steered: int) -> int:
    """Receive up to `count` datagrams as letters; how many, and which were too long left out of it."""
    x[X_NUM_READ] = 0
    for _ in range(MAX_NEWS_OF_LOSS):
        for i in range(count):
            h = words_at(x[X_IN_HDRS] + i * HDR_ROW * WORD)
            h[HDR_NAME_LENGTH], h[HDR_CONTROL_LENGTH], h[HDR_FLAGS] = NAME_ROOM, CONTROL_ROOM, 0
        done = _call(x, X_RECVMMSG, fd, x[X_IN_HDRS], count)
        if done >= 0:
            return sort(k, x, done, rail, is_steered)
        if done == -EAGAIN:
            return 0
        if -done not in LOST and done != -EINTR:
            return done
    return 0


@part
def sort(k: Any, x: Any, count: int, rail: int, is_steered: int) -> int:
    """Make letters of the first so many datagrams of the sheet, several of one that came as a batch."""
    num = 0
    x[X_NUM_READ] = count
    for i in range(count):
        h = words_at(x[X_IN_HDRS] + i * HDR_ROW * WORD)
        if h[HDR_FLAGS] & MSG_TRUNC or num == x[X_MAX_LETTERS]:
            x[X_NUM_CUT] += 1
            continue
        letter = words_at(k[K_IN] + num * IN_ROW * WORD)
        data, length = x[X_IN_DATA] + i * x[X_DATA_ROOM], h[HDR_LENGTH] & 0xFFFFFFFF
        tclass, label, step = 0, 0, 0
        at = h[HDR_CONTROL]
        end = at + h[HDR_CONTROL_LENGTH]
        while at + CMSG_HEAD < end:
            cmsg = words_at(at)
            level, kind = cmsg[1] & 0xFFFFFFFF, cmsg[1] >> 32
            if level == IPPROTO_IPV6 and kind == IPV6_FLOWINFO:
                label = load16(at + CMSG_HEAD + 2)
            elif (level == IPPROTO_IPV6 and kind == IPV6_TCLASS) or (level == IPPROTO_IP and kind == IP_TOS):
                tclass = load8(at + CMSG_HEAD)
            elif level == IPPROTO_UDP and kind == UDP_GRO:
                step = cmsg[2] & 0xFFFFFFFF
            at += max(cmsg[0] + 7 & ~7, CMSG_HEAD)
        name = h[HDR_NAME]
        port = load16(name + 2)
        if not is_steered:
            label = 0
        letter[I_DATA] = data
        letter[I_LENGTH] = min(step, length) if step > 0 else length
        letter[I_EV] = port << 16 | label
        letter[I_DSCP] = tclass >> DSCP_SHIFT
        letter[I_MARKED] = 1 if tclass & ECN_MASK == ECN_CE else 0
        _locate(k, letter, rail, port, name)
        num += 1
        done = letter[I_LENGTH]
        while done < length:
            if num == x[X_MAX_LETTERS]:
                x[X_NUM_CUT] += 1
                break
            more = words_at(k[K_IN] + num * IN_ROW * WORD)
            for j in range(IN_ROW):
                more[j] = letter[j]
            more[I_DATA] = data + done
            more[I_LENGTH] = min(step, length - done)
            done += step
            num += 1
    return num


@part
def _locate(k: Any, letter: Any, rail: int, port: int, name: int) -> None:
    """Peer and plane of where a letter came from."""
    high, low = 0, load32(name + 4)
    if load8(name) != AF_INET:
        high, low = load64(name + 8), load64(name + 16)
    key = (rail << 16 | port) + 1
    at = (key + low) * HASH & k[K_PLACES_MASK]
    letter[I_PEER], letter[I_PLANE], letter[I_SEAL], letter[I_CARD] = PEER_FOREIGN, 0, 0, 0
    while True:
        row = words_at(k[K_PLACES] + at * PLACE_ROW * WORD)
        if row[PLACE_PORT] == 0:
            return
        if row[PLACE_PORT] == key and row[PLACE_HIGH] == high and row[PLACE_LOW] == low:
            letter[I_PEER] = row[PLACE_PEER] >> PLACE_PLANE_BITS
            letter[I_PLANE] = row[PLACE_PEER] & (1 << PLACE_PLANE_BITS) - 1
            letter[I_SEAL], letter[I_CARD] = row[PLACE_SEAL], row[PLACE_CARD]
            return
        at = at + 1 & k[K_PLACES_MASK]
