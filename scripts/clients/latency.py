"""Latency: a plain client of a gateway, the latencies of its GETs, and the gateway's memory; for idle.py and abuse.py."""

import socket
import time

GETS = 20_000


def connect(port, tls=None):
    """A connection; with a context of `ssl`, by TLS."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(client) if tls else client


def ask(client, command, reply_bytes):
    """Sends a command and takes a reply of that length."""
    client.sendall(command)
    while reply_bytes > 0:
        received = len(client.recv(65_536))
        assert received > 0, "the gateway closed the connection"
        reply_bytes -= received


def resident(process):
    """Bytes of memory that a process has resident."""
    with open(f"/proc/{process}/statm", encoding="ascii") as told:
        return int(told.read().split()[1]) * 4096


def latencies(client, shares):
    """The latencies of GETS gets, at those shares of them."""
    ask(client, b"SET k v\r\n", len(b"+OK\r\n"))
    took = []
    for _ in range(GETS):
        began = time.perf_counter_ns()
        ask(client, b"GET k\r\n", len(b"$1\r\nv\r\n"))
        took.append(time.perf_counter_ns() - began)
    took.sort()
    return " ".join(f"p{100 * share:g} {took[int(GETS * share)] / 1_000:.1f} us" for share in shares)
