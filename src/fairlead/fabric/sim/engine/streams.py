"""Records on the wire: what a node will receive, kept by receiving node and by window.

A stream holds the records that reach one node within one window, written by one thread. It is a chain of chunks, so
memory follows the number of packets that are really on the wire, and both writing and reading walk memory in order.

Knows: chunks and chains. Must not know: what a record says.
"""

from __future__ import annotations

from typing import Any

from fairlead.fabric.sim.engine import layout as at
from fairlead.fabric.sim.engine.jit import engine, engine_inline, halves, row_of
from fairlead.fabric.sim.engine.stores import give, take


@engine
def arriving(w: Any, node: int, thread: int, writer: int) -> int:
    """The stream of what `writer` sent to `node` for the window that `thread` plays now."""
    slot = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)[at.TH_SLOT]
    return (node * w[at.W_SLOTS] + slot) * w[at.W_THREADS] + writer


@engine_inline
def new_record(w: Any, thread: int, node: int, time: int) -> int:
    """Room for one more record that reaches `node` at `time`: its first word in the store, or -1 if that is full."""
    mine = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
    left = time - mine[at.TH_START]
    slot = mine[at.TH_SLOT]
    while left >= w[at.W_WINDOW]:  # once or twice; a division costs more
        left -= w[at.W_WINDOW]
        slot += 1
    slot &= w[at.W_SLOTS] - 1
    stream = row_of(w, at.T_STREAMS, at.STREAM_COLUMNS, (node * w[at.W_SLOTS] + slot) * w[at.W_THREADS] + thread)
    count = stream[at.STREAM_COUNT]
    if count & (at.CHUNK - 1) == 0:
        chunk = take(w, thread, at.TH_CHUNKS, at.T_CHUNK_FREE)
        if chunk < 0:
            return -1
        if count == 0:
            stream[at.STREAM_HEAD] = chunk
        else:
            halves(w[at.T_CHAIN])[stream[at.STREAM_TAIL]] = chunk
        stream[at.STREAM_TAIL] = chunk
    stream[at.STREAM_COUNT] = count + 1
    mine[at.TH_IN_FLIGHT] += 1
    return (stream[at.STREAM_TAIL] * at.CHUNK + (count & (at.CHUNK - 1))) * at.RECORD_WORDS


@engine
def release(w: Any, thread: int, index: int) -> None:
    """Empty a stream that was read; its chunks go to the thread that read it."""
    stream = row_of(w, at.T_STREAMS, at.STREAM_COLUMNS, index)
    chain = halves(w[at.T_CHAIN])
    mine = row_of(w, at.T_THREADS, at.THREAD_COLUMNS, thread)
    left = (stream[at.STREAM_COUNT] + at.CHUNK - 1) // at.CHUNK
    chunk = stream[at.STREAM_HEAD]
    for _ in range(left):
        give(w, thread, at.TH_CHUNKS, at.T_CHUNK_FREE, chunk)
        chunk = chain[chunk]
    mine[at.TH_IN_FLIGHT] -= stream[at.STREAM_COUNT]
    stream[at.STREAM_COUNT] = 0


@engine
def read_stream(w: Any, index: int, places: Any, num: int) -> int:
    """Write the first word of every record of a stream to `places[num:]`; returns the new `num`."""
    stream = row_of(w, at.T_STREAMS, at.STREAM_COLUMNS, index)
    chain = halves(w[at.T_CHAIN])
    left, chunk = stream[at.STREAM_COUNT], stream[at.STREAM_HEAD]
    while left > 0:
        first = chunk * at.CHUNK * at.RECORD_WORDS
        for i in range(min(left, at.CHUNK)):
            places[num + i] = first + i * at.RECORD_WORDS
        num += min(left, at.CHUNK)
        left -= at.CHUNK
        if left > 0:
            chunk = chain[chunk]
    return num
