"""A modest tenant beside a flooding one, both with the same language model: first tokens, and tokens after them.

A server for each policy, all started at once on loopback with one model, and loaded in turns by clients in a process of
their own, so that a busy machine slows all of them alike. The flood keeps 48 requests of 200 tokens under way, each for
64 more; the modest tenant asks for 16 tokens after 32, reads them as a stream, and waits 0.1 s before it asks again.
Ratios are to FIFO in the same round, and the median of the rounds is shown; percentiles are of all rounds together.

The model is a decoder with random weights that speaks ASCII, so that each token is an event. Its power is modelled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing as mp
import signal
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.serving import start

QUANTUM_S = 0.1
POLICIES = ("fifo", "vtc", "tf", "ef", "etf")
FLOOD, MODEST = (200, 64), (32, 16)  # tokens of a prompt and of its answer
CACHE = 4096


def write_model(path: Path, width: int, layers: int) -> None:
    """Write a decoder that, at a low temperature, answers in ASCII."""
    from commonwatt.devices.language.decoder import write_decoder

    write_decoder(path, width=width, layers=layers, heads=8, kv_heads=4)
    with np.load(path) as stored:
        arrays = {name: stored[name].copy() for name in stored.files}
    arrays["head"][:, 128:] = 0
    arrays["head"][:, :32] = 0
    np.savez(path, **arrays)


def configuration(folder: Path, policy: str) -> Path:
    """Write the file of one server."""
    document = {
        "device": {"kind": "cpu", "threads": 1}, "policy": policy, "phi": 0.7, "quantum_s": QUANTUM_S,
        "tenants": [
            {
                "name": name, "key": f"key-of-{name}", "queue_limit": 1000,
                "models": [
                    {"name": "m", "path": "m.npz", "language": {"kv_cache_tokens": CACHE, "max_sequences": 16}}
                ],
            }
            for name in ("flood", "modest")
        ],
        "server": {"rest_port": 0, "grpc_port": None, "operator_key": "operator-secret"},
    }  # fmt: skip
    path = folder / f"{policy}.json"
    path.write_text(json.dumps(document))
    return path


async def _stream(address: str, tenant: str, tokens: tuple[int, int], seed: int) -> list[float]:
    """Ask once; returns when the request was sent, and when each event came."""
    host, port = address.split(":")
    prompt = (65 + np.random.default_rng(seed).integers(0, 26, tokens[0])).tolist()
    body = json.dumps({
        "model": "m", "prompt": prompt, "max_tokens": tokens[1], "temperature": 0.2, "seed": seed, "stream": True,
    }).encode()  # fmt: skip
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: server\r\nAuthorization: Bearer key-of-{tenant}\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(host, int(port))
    times = [perf_counter()]
    try:
        writer.write(head.encode() + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"a request was answered {status!r} {(await reader.read())[:500]!r}")
        while line := await reader.readline():
            if line.startswith(b"data: {") and b'"text": ""' not in line:
                times.append(perf_counter())
    finally:
        writer.close()
    return times


async def _clients(address: str, seconds: float, flood: int) -> dict[str, Any]:
    """Load a server; returns the modest tenant's waits."""
    end = perf_counter() + seconds
    seeds = iter(range(10**9))

    async def flooding() -> None:
        while True:
            await _stream(address, "flood", FLOOD, next(seeds))

    floods = [asyncio.create_task(flooding()) for _ in range(flood)]
    await asyncio.sleep(0.2 * seconds if flood else 0)
    first, between = [], []
    while perf_counter() < end:
        sent, *came = await _stream(address, "modest", MODEST, next(seeds))
        first.append(came[0] - sent)
        between += np.diff(came).tolist()
        await asyncio.sleep(0.1)
    for task in floods:
        task.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    return {"first_s": first, "between_s": between}


def _in_process(queue: mp.Queue, address: str, seconds: float, flood: int) -> None:
    queue.put(asyncio.run(_clients(address, seconds, flood)))


def tenants(address: str) -> dict[str, Any]:
    """Return the status of the tenants."""
    asked = urllib.request.Request(
        f"http://{address}/v2/commonwatt/status", headers={"Authorization": "Bearer operator-secret"}
    )
    with urllib.request.urlopen(asked) as answer:
        found: dict[str, Any] = json.load(answer)["tenants"]
        return found


def round_of(address: str, seconds: float, flood: int) -> dict[str, Any]:
    """Load a server once; returns waits of the modest tenant, and rates in the middle of the time."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_process, args=(queue, address, seconds, flood))
    process.start()
    sleep(0.4 * seconds)
    before, began = tenants(address), perf_counter()
    sleep(0.5 * seconds)
    after, took = tenants(address), perf_counter() - began
    found = queue.get()
    process.join()
    while any(tenant["queue_length"] for tenant in tenants(address).values()):
        sleep(0.05)

    def gained(name: str, *path: str) -> float:
        values = []
        for document in (before[name], after[name]):
            for key in path:
                document = document[key]
            values.append(document)
        return float(values[1] - values[0])

    for name in before:
        found[name] = {
            "answer_tokens_per_s": gained(name, "tokens", "answer") / took, "time_s": gained(name, "time_s"),
            "energy_j": gained(name, "energy_j"), "power_w": after[name]["power_w"],
        }  # fmt: skip
    return dict(found)


def summary(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a row for each policy: medians over rounds, ratios to FIFO's of the same round."""
    rows = []
    for policy, rounds in found.items():
        row: dict[str, Any] = {"policy": policy}
        for key, name in (("first_s", "first"), ("between_s", "between")):
            values = 1e3 * np.concatenate([r[key] for r in rounds])
            row |= {f"{name}_p50_ms": float(np.median(values)), f"{name}_p99_ms": float(np.quantile(values, 0.99))}
        rates = [r["flood"]["answer_tokens_per_s"] for r in rounds]
        row["flood_tokens_per_s"] = float(np.median(rates))
        if policy in POLICIES:
            alike = zip(rates, found["fifo"], strict=True)
            row["over_fifo"] = float(np.median([own / of["flood"]["answer_tokens_per_s"] for own, of in alike]))
            for key in ("time_s", "energy_j"):
                parts = [r["flood"][key] / (r["flood"][key] + r["modest"][key]) for r in rounds]
                row[f"flood_part_of_{key[:-2]}"] = float(np.median(parts))
        rows.append(row)
    return rows


def tell(rows: list[dict[str, Any]]) -> None:
    """Print a row for each policy."""
    print(
        f"{'':12s} {'first token, ms':>20s} {'between tokens, ms':>20s} {'flood, tokens/s':>16s} {'ratio':>6s} "
        f"{'time of flood':>14s} {'energy of flood':>16s}"
    )
    print(f"{'policy':12s} {'p50':>10s}{'p99':>10s} {'p50':>10s}{'p99':>10s}")
    for row in rows:
        columns = " ".join(
            f"{row[f'{name}_p50_ms']:10.1f}{row[f'{name}_p99_ms']:10.1f}" for name in ("first", "between")
        )  # fmt: skip
        line = f"{row['policy']:12s} {columns} {row['flood_tokens_per_s']:16.0f}"
        if row["policy"] in POLICIES:
            line += f" {row['over_fifo']:6.2f} {row['flood_part_of_time']:14.1%} {row['flood_part_of_energy']:16.1%}"
        print(line)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flood", type=int, default=48, help="requests that the flood keeps under way")
    parser.add_argument("--width", type=int, default=256, help="of the decoder")
    parser.add_argument("--layers", type=int, default=8, help="of the decoder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        write_model(folder / "m.npz", options.width, options.layers)
        addresses = {}
        for policy in POLICIES:
            process, addresses[policy] = start(configuration(folder, policy), "rest")
            running.callback(process.wait)
            running.callback(process.send_signal, signal.SIGTERM)
        found: dict[str, list[dict[str, Any]]] = {"alone": [], **{policy: [] for policy in POLICIES}}
        for _ in range(options.rounds):
            found["alone"].append(round_of(addresses["etf"], options.seconds / 2, 0))
            for policy, address in addresses.items():
                found[policy].append(round_of(address, options.seconds, options.flood))
    if options.json:
        print(json.dumps({"quantum_s": QUANTUM_S, "summary": summary(found), "policies": found}))
    else:
        tell(summary(found))


if __name__ == "__main__":
    main()
