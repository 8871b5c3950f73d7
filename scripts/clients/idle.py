"""Idle: the memory of idle connections to a gateway, and the latencies of one client beside them.

    python3 scripts/clients/idle.py PORT CONNECTIONS PID [CERTIFICATE]

Each connection sends and receives 10 KB and then waits. PID is the gateway's process; with a certificate, TLS.
"""

import socket
import ssl
import sys
import time

port, count, process = map(int, sys.argv[1:4])
tls = None
if len(sys.argv) > 4:
    tls = ssl.create_default_context(cafile=sys.argv[4])
    tls.check_hostname = False
ECHO = b"*2\r\n$4\r\nECHO\r\n$10000\r\n" + b"v" * 10_000 + b"\r\n"
ECHO_REPLY_BYTES = len(ECHO) - len(b"*2\r\n$4\r\nECHO\r\n")
GETS = 20_000


def connect():
    client = socket.create_connection(("127.0.0.1", port))
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return tls.wrap_socket(client) if tls else client


def ask(client, command, reply_bytes):
    client.sendall(command)
    while reply_bytes > 0:
        received = len(client.recv(65_536))
        assert received > 0, "the gateway closed the connection"
        reply_bytes -= received


def resident():
    with open(f"/proc/{process}/statm", encoding="ascii") as told:
        return int(told.read().split()[1]) * 4096


def connect_and_use(number):
    clients = [connect() for _ in range(number)]
    for client in clients:
        ask(client, ECHO, ECHO_REPLY_BYTES)
    return clients


def latencies():
    client = connect()
    ask(client, b"SET k v\r\n", len(b"+OK\r\n"))
    took = []
    for _ in range(GETS):
        began = time.perf_counter_ns()
        ask(client, b"GET k\r\n", len(b"$1\r\nv\r\n"))
        took.append(time.perf_counter_ns() - began)
    took.sort()
    shares = (0.5, 0.99, 0.999)
    return " ".join(f"p{100 * share:g} {took[int(GETS * share)] / 1_000:.1f} us" for share in shares)


first = connect_and_use(20)
latencies()
print("without them:", latencies())
before = resident()
idle = connect_and_use(count)
print(f"bytes for each of {count}: {(resident() - before) / count:.0f}")
for _ in range(3):
    print("beside them:", latencies())
