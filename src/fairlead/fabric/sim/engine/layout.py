"""Where everything stands in the engine's memory: names for positions, no code.

`w`, the world vector, holds one run: scalars (W_*) first, then an (address, length) pair for each table (T_*). The
tables are numpy arrays that Python keeps alive (`memory.py`). Times are picoseconds since the start, so that packet
times are exact (a byte takes 80 ps at 100 Gb/s, 10 ps at 800 Gb/s); the protocol law is given nanoseconds.

A *node* is what one thread sweeps at a time: a switch, or the group of NICs below one T0 index in all planes.
A *port* is one direction of one link, named by who sends on it. A *record* is a packet on its way.
"""

from __future__ import annotations

from typing import Final

NEVER: Final = 1 << 62

TRANSPORT_MRC, TRANSPORT_ROCE = range(2)

# --- world: scalars ---------------------------------------------------------------------------------------------------
(
    W_SELF,  # address of this vector
    W_THREADS,
    W_WINDOW,  # ps; no link is shorter, so nodes cannot see each other inside one window
    W_SLOTS,  # windows ahead that a record may arrive; a power of two
    W_SEED,
    # shape (shape.py)
    W_TIERS,
    W_PLANES,
    W_T0,  # per plane
    W_HOSTS,  # NICs below one T0
    W_UP0,  # uplinks of a T0
    W_UP1,  # uplinks of an aggregation switch
    W_BUNDLE1,  # parallel links between a T0 and a T1
    W_BUNDLE2,  # parallel links between a T1 and a core
    W_POD_T0,  # T0 switches of a pod; all of a plane in two tiers
    W_GROUP0,  # the first NIC group; switches come before
    W_HASHED,  # 1: switches choose uplinks by hash of flow and entropy; 0: the packet names its uplink
    # queues, bytes
    W_DATA_LIMIT,
    W_CONTROL_LIMIT,
    W_ECN_LOW,
    W_ECN_HIGH,
    W_ECN_LAST_HOP,
    W_TRIM_BYTES,
    W_XOFF,  # bytes of one ingress that pause its sender; 0: no PFC
    W_XON,
    # endpoints
    W_TRANSPORT,  # TRANSPORT_*
    W_TX_BASE,  # address of requestor row 0 in MEMORY; row i follows at i * stride
    W_TX_STRIDE,
    W_RX_BASE,
    W_RX_STRIDE,
    W_EV_SHIFT,
    W_EV_MASK,
    W_OVERHEAD,  # bytes on the wire beyond the payload
    W_CONTROL_KINDS,  # bit set of kinds that ride in the control class, ahead of data
    W_TRIM_KINDS,  # of kinds that a switch may trim; others are dropped
    W_ECHO,  # 1: packets carry the time they were sent
    W_ANNOUNCE,  # 1: endpoints tell their peers which ports are up
    # results
    W_BIN,  # ps per bin of the goodput record
    W_BINS,
    W_MESSAGES,  # to complete before the run is over
    W_SCRATCH_ROOM,  # records one node can receive in one window
    # faults
    W_DOWN,  # ports that are down
    W_REROUTED,  # 1: hashing switches avoid dead links
    NUM_SCALARS,
) = range(43)
W_SIZES: Final = NUM_SCALARS  # bytes on the wire by kind, but of data, whose packets differ
FIRST_TABLE: Final = NUM_SCALARS + 16

# --- world: tables ----------------------------------------------------------------------------------------------------
TABLES: Final = (
    "threads",
    "nodes",
    "order",
    "ports",
    "counts",
    "until",
    "streams",
    "store",
    "chain",
    "chunk_free",
    "pool",
    "links",
    "pool_free",
    "nics",
    "flows",
    "receivers",
    "messages",
    "successors",
    "memory",
    "blocks",
    "bodies",
    "scratch",
    "goodput",
    "ev_loss",
    "roce",
    "roce_tx",
    "roce_rx",
    "dead_links",
    "held",
    "depths",
)
(
    T_THREADS, T_NODES, T_ORDER, T_PORTS, T_COUNTS, T_UNTIL, T_STREAMS, T_STORE, T_CHAIN, T_CHUNK_FREE, T_POOL,
    T_LINKS, T_POOL_FREE, T_NICS, T_FLOWS, T_RECEIVERS, T_MESSAGES, T_SUCCESSORS, T_MEMORY, T_BLOCKS, T_BODIES,
    T_SCRATCH, T_GOODPUT, T_EV_LOSS, T_ROCE, T_ROCE_TX, T_ROCE_RX, T_DEAD_LINKS,
    T_HELD, T_DEPTHS,
) = range(FIRST_TABLE, FIRST_TABLE + 2 * len(TABLES), 2)  # fmt: skip

# --- world: addresses of compiled units -------------------------------------------------------------------------------
(
    C_POST,
    C_READY,
    C_NEXT_PACKET,
    C_ON_SACK,
    C_ON_NACK,
    C_ON_ACK,
    C_ON_TIMER,
    C_ON_DATA,
    C_ON_PROBE,
    C_CONTROL_SLOT,
    C_REPLY_SLOT,
    C_NEXT_CONTROL,
    C_ON_RX_TIMER,
    C_ON_PORTS,
    C_ON_PEER_PORTS,
    C_ON_REPLY,
    C_SWEEP_GROUP,
    C_SWEEP_SWITCH,
    C_ROCE_RECEIVE,
    C_ROCE_SEND,
    C_ROCE_TIMERS,
    WORLD_WORDS,
) = range(FIRST_TABLE + 2 * len(TABLES), FIRST_TABLE + 2 * len(TABLES) + 22)

# --- records ----------------------------------------------------------------------------------------------------------
RECORD_WORDS: Final = 8  # one cache line
TIME, META, ROUTE, ROWS, BODY = range(5)
# META: bytes on the wire (0-15) | kind (16-19) | flags of the law (20-31) | port it arrives on (32-)
SIZE_MASK: Final = 0xFFFF
KIND_SHIFT: Final = 16
KIND_MASK: Final = 0xF
FLAGS_SHIFT: Final = 20
FLAGS_MASK: Final = 0xFFF
IN_PORT_SHIFT: Final = 32
BELOW_IN_PORT: Final = (1 << IN_PORT_SHIFT) - 1
# ROUTE: T0 of the destination (0-15) | its port there (16-31) | uplink, or entropy where switches hash (32-47) | pod
ROUTE_PORT_SHIFT: Final = 16
ROUTE_PATH_SHIFT: Final = 32
ROUTE_POD_SHIFT: Final = 48
# ROWS: row it is meant for (0-31) | flow, for hashing (32-)
ROWS_FLOW_SHIFT: Final = 32
# BODY of data: PSN (0-31) | EV slot (32-39) | payload (40-), then send time in ns; of SACK and NACK: see wire.pack
BODY_SLOT_SHIFT: Final = 32
BODY_PAYLOAD_SHIFT: Final = 40
BODY_WORDS: Final = 4

(
    KIND_DATA,
    KIND_SACK,
    KIND_NACK,
    KIND_ACK,
    KIND_PROBE,
    KIND_EV_PROBE,
    KIND_EV_REPLY,
    KIND_STATUS,
    KIND_STATUS_REPLY,
    KIND_ROCE_DATA,
    KIND_ROCE_ACK,
    KIND_ROCE_NAK,
    KIND_CNP,
    KIND_PAUSE,
    KIND_RESUME,
) = range(15)

# --- streams ----------------------------------------------------------------------------------------------------------
STREAM_HEAD, STREAM_TAIL, STREAM_COUNT = range(3)
STREAM_COLUMNS: Final = 4  # half a cache line
CHUNK: Final = 32  # records in a chunk

# --- threads: where each finds free memory, and what it counted -------------------------------------------------------
ST_STACK, ST_FREE, ST_FRESH, ST_END = range(4)
# of a store: where its stack of free numbers begins, how many stand there; first number never used, and where these end
TH_CHUNKS, TH_PLACES = 0, 4  # two stores
(
    TH_OVERFLOW,  # packets lost because the memory for them was too small: a run with one is void
    TH_ARRIVALS,  # packets that reached a node: hops played
    TH_FIRST_NODE,  # its part of the list of nodes
    TH_LAST_NODE,
    TH_WAKE,  # when its nodes next have something to do without an arrival
    TH_DONE,  # messages complete
    TH_DELIVERED,  # packets that reached their NIC
    TH_REFUSED,  # ... by a port that was down
    TH_IN_FLIGHT,  # records written less records read: the sum over threads is what is on the wire
    TH_START,  # of the window being played
    TH_SLOT,  # its slot among the streams
    TH_BIN,  # its bin of the record over time
) = range(8, 20)
THREAD_COLUMNS: Final = 24  # three cache lines, so that threads do not share one

# --- nodes ------------------------------------------------------------------------------------------------------------
ND_KIND, ND_PLANE, ND_INDEX, ND_POD, ND_PORT0, ND_PORTS, ND_WAKE, ND_SALT = range(8)
NODE_COLUMNS: Final = 8
NODE_T0, NODE_T1, NODE_CORE, NODE_GROUP = range(4)

HELD_COLUMNS: Final = 2  # deepest queues of a switch when it was last played: its ports, its uplinks if it is a T0
DEPTH_KINDS: Final = 4  # rows of DEPTHS for each thread: depths.KINDS

# --- ports, int32 -----------------------------------------------------------------------------------------------------
(
    PT_DATA_HEAD,
    PT_DATA_TAIL,
    PT_CONTROL_HEAD,
    PT_CONTROL_TAIL,
    PT_DATA_BYTES,
    PT_CONTROL_BYTES,
    PT_SERVING,  # place in the pool of the packet being sent; -1: idle
    PT_STATE,
    PT_FS_PER_BYTE,  # femtoseconds a byte takes
    PT_LOSS,  # packets lost on this link, per million
    PT_FAR_NODE,
    PT_FAR_PORT,  # the port of the far node that packets arrive on; at a NIC group its host << 5 | plane
    PT_LATENCY,  # ps on the wire, latency of the switch at its far end included
    PT_INGRESS,  # bytes held that came in by this port (PFC)
    PT_MAX_DATA,
    PT_SENT,
) = range(16)
PORT_COLUMNS: Final = 16
CN_MARKS, CN_TRIMS, CN_DROPS, CN_LOST = range(4)  # lost: on the link, at random
COUNT_COLUMNS: Final = 4
PORT_DOWN: Final = 1
PORT_PAUSED: Final = 2
PORT_SERVES_CONTROL: Final = 4
PORT_ASKED_PAUSE: Final = 8  # the sender at the far end was asked to pause
PORT_TELLS: Final = 16  # a fault changed what is held from it: tell the far end anew whether to pause
PORT_SCALE_SHIFT: Final = 8  # percent of the tier's rate that this port has, for its thresholds; 0: all of it

# --- blocks: what the law hands out, and bodies: what goes into a record; one row per thread --------------------------
BLOCK_COLUMNS: Final = 32

# --- scratch: six rows per thread -------------------------------------------------------------------------------------
SC_KEYS, SC_VALUES, SC_BUCKETS, SC_SORTED_KEYS, SC_SORTED_VALUES, SC_STARTS = range(6)
SCRATCH_ROWS: Final = 6
KEY_TIME_SHIFT: Final = 20  # a key is time within the window, then the port (or plane) it came in by
KEY_PAUSE_SHIFT: Final = 16  # above the port: the order of pause frames

HOST_SHIFT: Final = 5  # of FAR_PORT at a NIC group
PLANE_MASK: Final = 31

LINK_NEXT, LINK_PREVIOUS, LINK_SIZE = range(3)
LINK_COLUMNS: Final = 4  # a quarter of a cache line

# --- NICs -------------------------------------------------------------------------------------------------------------
(
    NC_PORT0,  # its port of plane 0; plane k follows at + k
    NC_PORTS,  # bit = plane whose local port is up
    NC_WAKE,  # earliest time it has something to do without an arrival
    NC_TIMER,  # earliest requestor deadline, ps
    NC_RX_TIMER,  # earliest responder deadline
    NC_READY_HEAD,  # flows that wait for a free port, in turn
    NC_READY_TAIL,
    NC_READY,  # how many
    NC_CONTROL,  # control packets queued at its ports
    NC_DUE,  # first of the messages that wait for a time to come
    NC_FLOW0,
    NC_FLOWS,
    NC_RECEIVER0,
    NC_RECEIVERS,
    NC_EV_LOSS,  # bit = row of EV_LOSS: losses, per million, on some of the paths of this NIC
    NC_PAUSED,  # bit = plane whose T0 asked for a pause (PFC)
    NC_NUMBER,
) = range(17)
NIC_COLUMNS: Final = 24  # three cache lines

# --- flows: the driver's side of a requestor; written by the thread of the sending NIC only ---------------------------
(
    FL_ROUTE,  # ROUTE to the receiver, without path
    FL_RECEIVER,  # its row among RECEIVERS
    FL_STRIDE,  # step between the uplinks of neighbouring EVs
    FL_NEXT_READY,
    FL_IS_READY,
    FL_MESSAGE0,
    FL_POSTED,  # messages handed to the law
    FL_SENT,  # messages known to be complete
    FL_MESSAGES,
) = range(9)
FLOW_COLUMNS: Final = 9

# --- receivers: the driver's side of a responder; written by the thread of the receiving NIC only ---------------------
RC_ROUTE, RC_FLOW, RC_STRIDE, RC_MESSAGE0, RC_DONE, RC_BYTES = range(6)
RECEIVER_COLUMNS: Final = 8  # a cache line

# --- messages ---------------------------------------------------------------------------------------------------------
(
    MS_FLOW,
    MS_BYTES,
    MS_WAIT,  # what must happen before it may go: completions of other messages
    MS_DELAY,  # ps from then until it goes (a computation)
    MS_DUE,  # when it goes; NEVER while it waits
    MS_NEXT,  # next in its NIC's list of due messages
    MS_READY,  # 1: due, waits for its turn on the flow
    MS_PLACED,  # when the last byte was placed at the receiver
    MS_ACKED,  # when the sender knew
    MS_AFTER_SENT,  # successors [first, first + num) once the sender knows
    MS_NUM_AFTER_SENT,
    MS_AFTER_PLACED,  # ... once it is placed
    MS_NUM_AFTER_PLACED,
    MS_END_PSN,  # first PSN after it (RoCE)
) = range(14)
MESSAGE_COLUMNS: Final = 16  # two cache lines
