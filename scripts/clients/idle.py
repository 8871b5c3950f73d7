"""Idle: the memory of idle connections to a gateway, and the latencies of one client beside them.

    python3 scripts/clients/idle.py PORT CONNECTIONS PID [CERTIFICATE]

Each connection sends and receives 10 KB and then waits. PID is the gateway's process; with a certificate, TLS.
"""

import ssl
import sys

from latency import ask, connect, latencies, resident

port, count, process = map(int, sys.argv[1:4])
tls = None
if len(sys.argv) > 4:
    tls = ssl.create_default_context(cafile=sys.argv[4])
    tls.check_hostname = False
ECHO = b"*2\r\n$4\r\nECHO\r\n$10000\r\n" + b"v" * 10_000 + b"\r\n"
ECHO_REPLY_BYTES = len(ECHO) - len(b"*2\r\n$4\r\nECHO\r\n")
SHARES = (0.5, 0.99, 0.999)


def connect_and_use(number):
    clients = [connect(port, tls) for _ in range(number)]
    for client in clients:
        ask(client, ECHO, ECHO_REPLY_BYTES)
    return clients


first = connect_and_use(20)
latencies(connect(port, tls), SHARES)
print("without them:", latencies(connect(port, tls), SHARES))
before = resident(process)
idle = connect_and_use(count)
print(f"bytes for each of {count}: {(resident(process) - before) / count:.0f}")
for _ in range(3):
    print("beside them:", latencies(connect(port, tls), SHARES))
