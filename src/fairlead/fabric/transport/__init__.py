"""MRC over ordinary sockets: for machines with several ports or planes and no MRC silicon."""

from fairlead.base.lazy import lazy

__getattr__ = lazy(
    __name__,
    {
        "context": ("Context", "Listener", "QueuePair"),
        "exchange": ("Remote",),
        "queues": ("CompletionQueue",),
    },
)
