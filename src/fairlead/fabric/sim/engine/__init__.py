"""The compiled engine: memory, queues, switches, NICs, and the loop over windows. Begin with loop.py."""
