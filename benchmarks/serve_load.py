"""Measure how fast a service answers: ``python serve_load.py URL --rate 200 --seconds 20``.

Requests are sent at fixed times, whether earlier ones have been answered or not, so that a service
that falls behind is found out. Make the dataset with ``generate_dataset.py``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import Counter
from urllib.parse import urlsplit


class Connection:
    """A connection that stays open; httpx would take longer than the service that is measured."""

    def __init__(self, url: str, path: str) -> None:
        parts, token = urlsplit(url), os.environ.get("FIB_SERVE_TOKEN")
        self._address = parts.hostname, parts.port or 80
        lines = [f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", "Accept-Encoding: gzip"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        self._request = "\r\n".join([*lines, "", ""]).encode()

    async def open(self) -> None:
        """Connect."""
        self._reader, self._writer = await asyncio.open_connection(*self._address)

    async def ask(self) -> tuple[int, int]:
        """Return status and size of an answer."""
        self._writer.write(self._request)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        size = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        await self._reader.readexactly(size)
        return int(head.split()[1]), size


async def measure(
    url: str, path: str, rate: float, seconds: float, connections: int
) -> dict[str, object]:
    """Return latencies in milliseconds and statuses of the answers."""
    taken: list[float] = []
    statuses: Counter[int] = Counter()
    size = 0
    free: asyncio.Queue[Connection] = asyncio.Queue()
    for _ in range(connections):
        one = Connection(url, path)
        await one.open()
        free.put_nowait(one)

    async def ask(due: float) -> None:
        nonlocal size
        connection = await free.get()
        status, size = await connection.ask()
        free.put_nowait(connection)
        taken.append(1e3 * (time.perf_counter() - due))
        statuses[status] += 1

    begin = time.perf_counter()
    tasks = []
    for number in range(int(rate * seconds)):
        due = begin + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(due)))
    await asyncio.gather(*tasks)
    span = time.perf_counter() - begin
    cuts = statistics.quantiles(taken, n=100)
    return {
        "path": path,
        "answers_per_s": round(len(taken) / span, 1),
        "statuses": dict(statuses),
        "bytes": size,
        "p50_ms": round(cuts[49], 2),
        "p95_ms": round(cuts[94], 2),
        "p99_ms": round(cuts[98], 2),
        "max_ms": round(max(taken), 2),
    }


def main() -> None:
    """Measure and print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--path", default="/leaderboard")
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=20)
    told = parser.parse_args()
    found = measure(told.url, told.path, told.rate, told.seconds, told.connections)
    print(json.dumps(asyncio.run(found)))


if __name__ == "__main__":
    main()
