"""Abuse: the latencies of one client beside clients that take memory and give nothing.

    python3 scripts/clients/abuse.py PORT PID [TOKEN]

PID is the gateway's process. Beside the client are, one kind after the other and then all at once: one that asks for 1 GiB
and reads nothing, 1,000 of which each has sent half a command, and one that sends bytes without end and no line. That
one is measured twice, at equal priority and at the lowest: where a server lets it keep two of two processors busy, the client
waits for the scheduler as well (docs/measurements/gateway.md has redis-server's figures).

If the gateway has users, TOKEN is one of theirs: all clients say it but the one that sends without end.
"""

import multiprocessing
import os
import sys
import time

import latency
from latency import ask, latencies, resident

port, process = map(int, sys.argv[1:3])
token = sys.argv[3].encode() if len(sys.argv) > 3 else None
VALUE_BYTES = 512 << 10


def connect():
    """A client that the gateway knows."""
    client = latency.connect(port)
    if token:
        ask(client, b"AUTH " + token + b"\r\n", len(b"+OK\r\n"))
    return client


def reader_of_nothing():
    """Asks for a large value 2,048 times, which is 1 GiB, and takes no byte of it."""
    client = connect()
    ask(client, b"*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n$%d\r\n" % VALUE_BYTES + b"v" * VALUE_BYTES + b"\r\n", len(b"+OK\r\n"))
    client.setblocking(False)
    wanted = b"*2\r\n$3\r\nGET\r\n$3\r\nbig\r\n" * ((1 << 30) // VALUE_BYTES)
    try:
        while wanted:
            wanted = wanted[client.send(wanted):]
    except BlockingIOError:
        pass
    return [client]


def half_commands():
    clients = [connect() for _ in range(1_000)]
    for client in clients:
        client.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$900\r\n" + b"v" * 400)
    return clients


def endless(priority):
    """Sends bytes without a line's end, and connects again whenever the gateway has had enough."""
    os.nice(priority)
    while True:
        try:
            with latency.connect(port) as client:
                while True:
                    client.sendall(b"x" * 16_384)
        except OSError:
            pass


def tell(case):
    told = latencies(connect(), (0.5, 0.99))
    print(f"{case}: {told}; resident {resident(process) / (1 << 20):.0f} MiB", flush=True)


latencies(connect(), ())
for _ in range(3):
    tell("alone")
held = reader_of_nothing()
time.sleep(1)
tell("one reads nothing")
held += half_commands()
tell("and 1,000 have sent half a command")
for priority in (0, 19):
    # A process of its own: a thread would take Python's lock from the client that is measured.
    sender = multiprocessing.Process(target=endless, args=(priority,), daemon=True)
    sender.start()
    for _ in range(3):
        tell(f"and one sends without end, nice {priority}")
    sender.terminate()
    sender.join()
