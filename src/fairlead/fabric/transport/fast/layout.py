"""Where words and bytes of the compiled path stand. Positions only, as in `mrc/layout.py`: no rule.

desk      one a context: addresses of all below, counters
card      one a queue pair: its rows, numbers, tables, and the ring of answers that wait
letter    one a datagram, out or in, in two sheets of as many: where its bytes lie, how it travels
news      what Python is to hear after a burst: completions, who has something to send
"""

from __future__ import annotations

from typing import Final

WORD: Final = 8  # bytes

# --- desk -----------------------------------------------------------------------------------------------------------
(
    K_CRC,  # address of a crc32; 0: packets have no iCRC
    K_CARDS,  # table: queue pair number -> address of its card
    K_CARDS_MASK,
    K_PLACES,  # table: where a datagram came from -> peer and plane
    K_PLACES_MASK,
    K_REGIONS,  # table: key -> memory
    K_REGIONS_MASK,
    K_OUT,  # letters that go
    K_NUM_OUT,
    K_HEADS,  # their headers and trailers
    K_IN,  # letters that came
    K_NEWS,
    K_NUM_NEWS,
    K_BLOCK,  # block of the law
    K_RECEIVED,  # counters
    K_MARKED,
    K_FOREIGN,
    K_NEXT_PACKET,  # addresses of the law's units
    K_ON_DATA,
    K_ON_SACK,
    K_ON_NACK,
    K_GCM_INIT,  # addresses of OpenSSL's functions, 0 where they are not to be had
    K_GCM_UPDATE,
    K_GCM_FINAL,
    K_GCM_CONTROL,
    K_UNAUTHENTIC,  # counters
    K_SENT,
    K_TURNS,  # addresses of the cards that have something to send, in the order of their turns
    K_NUM_TURNS,
    K_MOST_NEWS,  # that may stand there before the letters of one more call
    NUM_DESK_WORDS,
) = range(31)

# --- tables: rows by open addressing, the first word says whether a row is taken ------------------------------------
CARD_ROW, CARD_QP, CARD_ADDRESS = 2, 0, 1
# port: rail << 16 | UDP port, + 1; seal: address of the card of the seal that opens what comes from there, or 0;
# card: of the first queue pair with this peer, 0 where Python has some of them
PLACE_PORT, PLACE_HIGH, PLACE_LOW, PLACE_PEER, PLACE_SEAL, PLACE_CARD, PLACE_ROW = range(7)
PLACE_PLANE_BITS: Final = 8  # PLACE_PEER: peer << 8 | plane
REGION_ROW, REGION_KEY, REGION_VA, REGION_LENGTH, REGION_MEMORY = 4, 0, 1, 2, 3  # key + 1
EV_ROW, EV_VALUE, EV_SLOT = 2, 0, 1  # value + 1
EV_MASK: Final = 511  # twice as many rows as a queue pair has entropy values
HASH: Final = 0x9E3779B1  # 2^32 / golden ratio, Knuth's multiplicative hashing

# --- card -----------------------------------------------------------------------------------------------------------
(
    C_NUMBER,  # by which Python knows it
    C_STATE,  # STATE_*
    C_M,  # address of the rows' memory
    C_TX,  # rows
    C_RX,
    C_QP,
    C_DEST,
    C_PEER,
    C_EVS,  # address: entropy value of each slot
    C_SLOTS,  # address: table entropy value -> slot
    C_SENDS,  # address: posted Writes, by message number
    C_RECEIVES,  # receive requests posted since the beginning
    C_ANSWERS,  # address: ring of answers
    C_HEAD,  # first answer that waits, and how many there ever were
    C_TAIL,
    C_READY,  # 1: Python knows that it may have something to send
    C_ROUTES,  # address: how each slot's packets go out
    C_SENT,  # address: packets by slot
    C_SEAL,  # address: card of the seal that closes what goes; 0: packets are not sealed
    C_PLANES,  # bit set of all planes
    C_BESIDE,  # address of the card of the next queue pair with the same peer, or 0
    NUM_CARD_WORDS,
) = range(22)
STATE_OTHER, STATE_RTR, STATE_RTS = range(3)

# a seal: OpenSSL's context, address of a nonce and scratch; the next counter to send, or the highest that came and the
# address of a ring of bits of the others, 32 a word
L_CONTEXT, L_NONCE, L_NEXT, L_HIGHEST, L_SEEN, NUM_SEAL_WORDS = range(6)

# a posted Write
SEND_ADDRESS, SEND_LENGTH, SEND_VA, SEND_KEY, SEND_IMM, SEND_ROW = range(6)
# a route: socket to send by, socket address to send to, of length 0 where the socket is connected to it
ROUTE_SOCKET, ROUTE_NAME, ROUTE_NAME_LENGTH, ROUTE_FAMILY, ROUTE_ROW = range(5)

# an answer that waits: kind, slot it arrived on, entropy value it came with, a number, then the block of the law
A_KIND, A_SLOT, A_EV, A_NUMBER, A_BLOCK = range(5)
ANSWER_ROW: Final = 12
ANSWER_SACK, ANSWER_NACK, ANSWER_ACK, ANSWER_RESPONSE = range(4)
MAX_ANSWERS: Final = 4096

# --- letters --------------------------------------------------------------------------------------------------------
(
    O_CARD,  # number of the card
    O_ROUTES,  # its table of routes
    O_SLOT,
    O_DSCP,
    O_SOCKET,
    O_HEAD_LENGTH,
    O_DATA,  # payload where it lies
    O_DATA_LENGTH,
    O_TAIL_LENGTH,
    OUT_ROW,
) = range(10)
HEAD_ROOM: Final = 160  # headers from the beginning
TAIL_AT: Final = 112  # padding, iCRC and seal, one behind the other

I_DATA, I_LENGTH, I_PEER, I_PLANE, I_EV, I_DSCP, I_MARKED, I_SEAL, I_CARD, IN_ROW = range(10)
PEER_FOREIGN: Final = -1
PEER_SLOW: Final = -2  # a peer whose packets Python takes
SEAL_OPENED: Final = -1  # I_SEAL: the letter is authentic, and without its seal

# --- news -----------------------------------------------------------------------------------------------------------
N_KIND, N_CARD, N_A, N_B, N_C, NEWS_ROW = range(6)
NEWS_WAKE, NEWS_SENT, NEWS_LAST, NEWS_DELIVER, NEWS_FAIL = range(5)
NEWS_PER_LETTER: Final = 4
# NEWS_WAKE: N_A is the address of the card

# --- the kernel's structures (linux/socket.h, netinet/in.h; little endian, 64 bits), as words ------------------------
HDR_NAME, HDR_NAME_LENGTH, HDR_IOV, HDR_NUM_IOV, HDR_CONTROL, HDR_CONTROL_LENGTH, HDR_FLAGS, HDR_LENGTH, HDR_ROW = (
    range(9)
)
IOV_BASE, IOV_LENGTH, IOV_ROW = range(3)
NAME_ROOM: Final = 32  # sockaddr_in6 has 28 bytes
CONTROL_ROOM: Final = 128
CMSG_HEAD: Final = 16

# --- post: what the system calls work on -----------------------------------------------------------------------------
(
    X_SENDMMSG,  # addresses of C functions
    X_RECVMMSG,
    X_ERRNO,
    X_OUT_HDRS,  # struct mmsghdr
    X_OUT_IOVS,  # three each
    X_OUT_CONTROLS,  # one for each class and family: CLASS_ROW bytes
    X_ORDER,  # letter of each mmsghdr
    X_FDS,  # descriptor of each socket
    X_NUM_SOCKETS,
    X_COUNTS,  # by socket, then where its letters begin
    X_HELD,  # by letter: 1 if its socket had no room
    X_IN_HDRS,
    X_IN_NAMES,
    X_IN_CONTROLS,
    X_IN_DATA,
    X_NUM_LOST,  # counters: lost on the way out of this host, longer than a buffer
    X_NUM_CUT,
    X_GSO,  # 1: letters go in batches
    X_FIRST,  # by mmsghdr: which of the ordered letters is its first
    X_OUT_BATCHES,  # control messages of each batch: BATCH_ROW bytes
    X_NUM_BATCHES,  # counter
    X_DATA_ROOM,  # bytes of a buffer of X_IN_DATA
    X_MAX_LETTERS,  # that there is room for on the desk
    X_NUM_READ,  # datagrams that the last call gave, a batch counted once
    X_MAX_READ,  # that it may give
    X_CLOCK,  # address of clock_gettime, and of what it writes
    X_TIME,
    X_NOW,  # what time the law was told last
    X_RAILS,  # descriptor of the socket that receives, by rail
    X_NUM_RAILS,
    X_STEERED,
    X_RAIL,  # where rounds ended: by which rail letters came, how many, and how many of them are taken in
    X_COME,
    X_TAKEN,
    X_IS_FULL,  # 1: in the last round not all ports were read empty
    NUM_POST_WORDS,
) = range(36)
ROUNDS_DONE, ROUNDS_MORE, ROUNDS_STOPPED, ROUNDS_HELD = range(4)
CLASS_ROW: Final = 32
BATCH_ROW: Final = 48
NUM_CLASSES: Final = 64
DATA_ROOM: Final = 8192
BATCH_ROOM: Final = 65536
