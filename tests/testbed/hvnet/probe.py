"""Measures a link with plain sockets, independently of MPI and of the engine.

python -m hvnet.probe serve               on one node: echoes UDP datagrams, reads and discards TCP streams
python -m hvnet.probe measure HOST BYTES  on another node: prints one JSON line {latency_seconds, bytes_per_second}
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time

_PORT = 7077
_PINGS = 200
_UNCOUNTED = 20  # first pings, which are slower, because addresses are resolved and processors wake up


def serve() -> None:
    """Runs for ever. Echoes datagrams. Reads each stream to its end and answers with one byte."""
    listener = socket.create_server(("", _PORT))
    threading.Thread(target=_swallow, args=(listener,), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as echo:
        echo.bind(("", _PORT))
        while True:
            data, sender = echo.recvfrom(64)
            echo.sendto(data, sender)


def _swallow(listener: socket.socket) -> None:
    while True:
        stream, _ = listener.accept()
        with stream:
            while stream.recv(1 << 20):
                pass
            stream.sendall(b".")


def one_way_seconds(host: str) -> float:
    """Returns half the median round trip of a small datagram on an idle link."""
    trips = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ping:
        ping.settimeout(1)
        for _ in range(_PINGS + _UNCOUNTED):
            begin = time.perf_counter()
            ping.sendto(b"ping", (host, _PORT))
            ping.recv(64)
            trips.append(time.perf_counter() - begin)
    return statistics.median(trips[_UNCOUNTED:]) / 2


def bytes_per_second(host: str, size: int) -> float:
    """Returns the payload rate of one TCP stream of `size` bytes, until the server has read the last byte."""
    block = bytes(1 << 16)
    with socket.create_connection((host, _PORT), timeout=60) as stream:
        begin = time.perf_counter()
        sent = 0
        while sent < size:
            stream.sendall(block)
            sent += len(block)
        stream.shutdown(socket.SHUT_WR)
        stream.recv(1)
        return sent / (time.perf_counter() - begin)


def main(arguments: list[str]) -> int:
    """Serves or measures. Returns the exit code."""
    if arguments == ["serve"]:
        serve()
    host, size = arguments[1], int(arguments[2])
    latency = one_way_seconds(host)
    print(json.dumps({"latency_seconds": latency, "bytes_per_second": bytes_per_second(host, size)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
