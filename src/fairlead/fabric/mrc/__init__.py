"""Multipath Reliable Connection (MRC): the protocol, without sockets, clocks, threads or chance."""
