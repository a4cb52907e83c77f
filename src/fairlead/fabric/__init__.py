"""The fabric: Multipath Reliable Connection as one protocol core, driven by a simulator and by real sockets."""
