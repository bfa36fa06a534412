"""What batches are worth and what they cost: servers side by side that run requests one by one, and in batches.

All servers are started at once on loopback with the same models, and loaded in turns, so that a busy machine slows all
of them alike; ratios are of rounds that followed each other, and their median is shown. Clients keep prepared bytes on
open connections, in a process of their own, so that the server is what is measured.

Small requests: two tenants of weights 2 and 1 keep so many requests of one row under way. Throughput, and how far each
tenant's share of the time is from the scheduler's plan, which counts a tenant while it has requests waiting or running;
the first and last tenth of a round are left out.
Large requests: one tenant sends 600 rows, the other single rows; how long these take meanwhile, in quanta.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing as mp
import signal
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

from benchmarks.serving import start

QUANTUM_S = 0.1
ROWS = 600
WEIGHTS = {"two": 2.0, "one": 1.0}
WAYS: dict[str, dict[str, Any]] = {
    "one by one": {"dynamic_batching": None},
    "batches": {},
    "batches, delay 2 ms": {"dynamic_batching": {"max_queue_delay_microseconds": 2000}},
    "batches of 8": {"max_batch_size": 8},
    "of 8, across tenants": {"max_batch_size": 8, "dynamic_batching": {"across_tenants": True}},
}
UNDIVIDED = {"max_batch_size": 0}
INPUTS = {
    "ranker": ("features", "FP32", (256,), np.float32),
    "transformer": ("tokens", "INT64", (32,), np.int64),
    "resnet": ("image", "FP32", (3, 32, 32), np.float32),
}


def ranker(width: int = 4096) -> Any:  # noqa: ANN401
    """Return a perceptron of 35 million weights: a row alone waits for the weights, many rows share them."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    sizes, nodes, weights, x = [256, width, width, width, 16], [], [], "features"
    for place, (a, b) in enumerate(itertools.pairwise(sizes)):
        last = place == len(sizes) - 2
        weights.append(numpy_helper.from_array((rng.standard_normal((a, b)) / a**0.5).astype(np.float32), f"w{place}"))
        nodes.append(helper.make_node("MatMul", [x, f"w{place}"], ["scores" if last else f"m{place}"]))
        if not last:
            x = f"r{place}"
            nodes.append(helper.make_node("Relu", [f"m{place}"], [x]))
    source = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", 256])
    result = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 16])
    graph = helper.make_graph(nodes, "ranker", [source], [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def configuration(folder: Path, way: str, own: dict[str, Any]) -> Path:
    """Write the file of one server."""
    models = [{"name": name, "path": f"{name}.onnx"} | own for name in INPUTS]
    document = {
        "device": {"kind": "cpu", "threads": 1}, "quantum_s": QUANTUM_S, "longest_undivided_step": 1e6,
        "tenants": [
            {"name": name, "key": f"key-of-{name}", "weight": weight, "queue_limit": 1000, "power_w": 20,
             "models": models}
            for name, weight in WEIGHTS.items()
        ],
        "server": {"rest_port": 0, "grpc_port": None, "operator_key": "operator-secret"},
    }  # fmt: skip
    path = folder / f"{way.replace(' ', '-')}.json"
    path.write_text(json.dumps(document))
    return path


@contextmanager
def server(path: Path) -> Iterator[str]:
    """Run a server; yields its address."""
    process, address = start(path, "rest")
    try:
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def request(model: str, tenant: str, rows: int) -> bytes:
    """Return a whole HTTP request with binary tensors."""
    name, datatype, shape, kind = INPUTS[model]
    data = np.ones((rows, *shape), kind).tobytes()
    tensor = {
        "name": name, "shape": [rows, *shape], "datatype": datatype, "parameters": {"binary_data_size": len(data)},
    }  # fmt: skip
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    lines = (
        f"POST /v2/models/{model}/infer HTTP/1.1", "Host: server", f"Authorization: Bearer key-of-{tenant}",
        f"Content-Length: {len(head) + len(data)}", f"Inference-Header-Content-Length: {len(head)}", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode() + head + data


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> float:
    began = perf_counter()
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head[:20]:
        raise SystemExit(f"a request was answered {head[:200]!r}")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return perf_counter() - began


async def _small(address: str, model: str, seconds: float, under_way: int) -> list[float]:
    host, port = address.split(":")
    took: list[float] = []
    end = perf_counter() + seconds

    async def client(tenant: str) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        data = request(model, tenant, 1)
        while perf_counter() < end:
            took.append(await _exchange(reader, writer, data))
        writer.close()

    await asyncio.gather(*(client(tenant) for tenant in WEIGHTS for _ in range(under_way)))
    return took


async def _large(address: str, requests: int) -> list[float]:
    host, port = address.split(":")
    took: list[float] = []
    large = await asyncio.open_connection(host, int(port))
    small = await asyncio.open_connection(host, int(port))
    for _ in range(requests):
        whole = asyncio.create_task(_exchange(*large, request("resnet", "two", ROWS)))
        await asyncio.sleep(0.15)
        while not whole.done():
            took.append(await _exchange(*small, request("transformer", "one", 1)))
            await asyncio.sleep(0.02)
        await whole
    for _, writer in (large, small):
        writer.close()
    return took


def _client(queue: mp.Queue, kind: str, arguments: tuple[object, ...]) -> None:
    queue.put("ready")
    queue.put(asyncio.run({"small": _small, "large": _large}[kind](*arguments)))  # type: ignore[operator]


@contextmanager
def clients(kind: str, *arguments: object) -> Iterator[Callable[[], list[float]]]:
    """Run clients in a process of their own; yields a function that waits for their latencies."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_client, args=(queue, kind, arguments))
    process.start()
    assert queue.get() == "ready"
    yield queue.get
    process.join()


def tenants(address: str) -> dict[str, dict[str, float]]:
    """Return the status of the tenants."""
    asked = urllib.request.Request(
        f"http://{address}/v2/commonwatt/status", headers={"Authorization": "Bearer operator-secret"}
    )
    with urllib.request.urlopen(asked) as answer:
        found: dict[str, dict[str, float]] = json.load(answer)["tenants"]
        return found


def deviation(before: dict[str, dict[str, float]], after: dict[str, dict[str, float]]) -> float:
    """Return the largest difference between a tenant's share of the time and of the plan, in points."""

    def shares(field: str) -> np.ndarray:
        used = np.array([after[name][field] - before[name][field] for name in WEIGHTS])
        return used / used.sum()

    return float(100 * np.abs(shares("time_s") - shares("planned_time_s")).max())


def small_requests(addresses: dict[str, str], options: argparse.Namespace) -> dict[str, dict[str, list[dict]]]:
    """Return throughput, latency and deviation from the plan, by model and way, of every round."""
    found: dict[str, dict[str, list[dict]]] = {
        model: {way: [] for way in addresses} for model in options.model or INPUTS
    }
    for model, ways in found.items():
        for _ in range(options.rounds):
            for way, address in addresses.items():
                with clients("small", address, model, options.seconds, options.under_way) as latencies:
                    sleep(0.1 * options.seconds)
                    before = tenants(address)
                    sleep(0.8 * options.seconds)
                    after = tenants(address)
                    took = latencies()
                ways[way].append({
                    "requests_per_s": len(took) / options.seconds, "p50_s": float(np.median(took)),
                    "p99_s": float(np.quantile(took, 0.99)), "points_from_plan": deviation(before, after),
                })  # fmt: skip
    return found


def summary(small: dict[str, dict[str, list[dict]]]) -> list[dict[str, Any]]:
    """Return a row for each model and way: medians over rounds, ratios to one by one of the same round."""
    rows = []
    for model, ways in small.items():
        first = ways["one by one"]
        for way, rounds in ways.items():
            alike = zip(rounds, first, strict=True)
            ratio = float(np.median([r["requests_per_s"] / o["requests_per_s"] for r, o in alike]))
            medians = {field: float(np.median([r[field] for r in rounds])) for field in rounds[0]}
            rows.append({"model": model, "way": way, **medians, "over_one_by_one": ratio})
    return rows


def quanta(large: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Return how long requests of one row took beside a large one, in quanta."""
    rows = []
    for way, took in large.items():
        each = np.array(took) / QUANTUM_S
        p99 = float(np.quantile(each, 0.99))
        rows.append({"way": way, "median": float(np.median(each)), "p99": p99, "most": float(each.max())})
    return rows


def tell(small: list[dict[str, Any]], large: list[dict[str, Any]]) -> None:
    """Print both comparisons."""
    print(f"{'model':12s} {'way':24s} {'requests/s':>10s} {'ratio':>6s} {'p50, ms':>8s} {'p99, ms':>8s} {'points':>7s}")
    for row in small:
        print(
            f"{row['model']:12s} {row['way']:24s} {row['requests_per_s']:10.0f} {row['over_one_by_one']:6.2f} "
            f"{1e3 * row['p50_s']:8.1f} {1e3 * row['p99_s']:8.1f} {row['points_from_plan']:7.2f}"
        )
    print(f"\nrequests of one row beside one of {ROWS} rows, in quanta of {QUANTUM_S} s")
    for row in large:
        print(f"{row['way']:24s} median {row['median']:.2f}, p99 {row['p99']:.2f}, most {row['most']:.2f}")


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--under-way", type=int, default=16, help="requests that each tenant keeps under way")
    parser.add_argument("--model", action="append", choices=list(INPUTS), help="only this one; may be repeated")
    parser.add_argument("--large", type=int, default=3, help=f"requests of {ROWS} rows")
    options = parser.parse_args()
    import onnx

    from commonwatt.devices.tiny_models import tiny_model

    with tempfile.TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        onnx.save(ranker(), folder / "ranker.onnx")
        onnx.save(tiny_model("transformer"), folder / "transformer.onnx")
        onnx.save(tiny_model("resnet", width=4, depth=2), folder / "resnet.onnx")
        addresses = {way: running.enter_context(server(configuration(folder, way, own))) for way, own in WAYS.items()}
        small = small_requests(addresses, options)
        undivided = running.enter_context(server(configuration(folder, "undivided", UNDIVIDED)))
        ways = {"undivided": undivided, "divided": addresses["batches"]}
        large = {}
        for way, address in ways.items():
            with clients("large", address, options.large) as latencies:
                large[way] = latencies()
    found = {"small": summary(small), "large": quanta(large), "quantum_s": QUANTUM_S}
    if options.json:
        print(json.dumps(found))
    else:
        tell(found["small"], found["large"])


if __name__ == "__main__":
    main()
