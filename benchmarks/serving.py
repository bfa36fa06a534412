"""A server that shares by ETF beside a plain FIFO server: throughput, and latency under a flood.

Both servers are started on loopback with the same
models; they are loaded one at a time, in turns, by clients in processes of their own (gRPC, unmodified tritonclient).

Throughput: two tenants with the same model, eight requests each kept under way. FIFO runs models uncut; ETF cuts them.
Flood: a tenant keeps 1, 4, 16, 64 requests under way while another, within its entitlement, sends one every so often.
Its 99th percentile should stay below (p99 alone) / (its share) + one quantum.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing as mp
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np

QUANTUM_S = 0.1
SHARE = 0.35  # phi 0.7 of a half
FLOODS = (1, 4, 16, 64)
SHAPE = (1, 3, 32, 32)


def config(folder: Path, policy: str) -> Path:
    """Write the configuration of one server."""
    document = {
        "device": {"kind": "cpu", "threads": 1} | ({"segment_s": None} if policy == "fifo" else {}),
        "policy": policy,
        "phi": 0.7,
        "quantum_s": QUANTUM_S,
        "tenants": [
            {
                "name": name, "key": f"{name}-secret", "queue_limit": 256, "power_w": 20,
                "models": [{"name": "resnet", "path": "resnet.onnx"}, {"name": "mobilenet", "path": "mobilenet.onnx"}],
            }
            for name in ("flood", "modest")
        ],
        "server": {"rest_port": 0, "grpc_port": 0, "operator_key": "operator-secret"},
    }  # fmt: skip
    path = folder / f"{policy}.json"
    path.write_text(json.dumps(document))
    return path


def start(path: Path, front: str = "grpc") -> tuple[subprocess.Popen[str], str]:
    """Start a server; returns the process and the address of its *front*: grpc or rest."""
    command = [str(Path(sys.executable).with_name("commonwatt")), "timeslice", "serve", str(path), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    text = ""
    while not text.endswith("}\n") or text.count("{") != text.count("}"):
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the server of {path} did not start")
        text += line
    return process, json.loads(text)[front]


async def _request(client: object, model: str, inputs: list[object], key: str) -> float:
    began = perf_counter()
    await client.infer(model, inputs, headers={"authorization": f"Bearer {key}"})  # type: ignore[attr-defined]
    return perf_counter() - began


async def _load(
    address: str, tenant: str, model: str, seconds: float, under_way: int, interval_s: float | None
) -> list[float]:
    """Latencies of a load: so many requests kept under way, or one every *interval_s*."""
    import tritonclient.grpc as plain
    import tritonclient.grpc.aio as triton

    key = f"{tenant}-secret"
    tensor = plain.InferInput("image", list(SHAPE), "FP32")
    tensor.set_data_from_numpy(np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32))
    found: list[float] = []
    async with triton.InferenceServerClient(address) as client:
        end = perf_counter() + seconds

        async def closed() -> None:
            while perf_counter() < end:
                found.append(await _request(client, model, [tensor], key))

        async def once() -> None:
            found.append(await _request(client, model, [tensor], key))

        if interval_s is None:
            await asyncio.gather(*(closed() for _ in range(under_way)))
        else:
            tasks = []
            while perf_counter() < end:
                tasks.append(asyncio.create_task(once()))
                await asyncio.sleep(interval_s)
            await asyncio.gather(*tasks)
    return found


def _client(queue: mp.Queue, *load: object) -> None:
    queue.put(asyncio.run(_load(*load)))  # type: ignore[arg-type]


def together(*loads: tuple[object, ...]) -> list[list[float]]:
    """Run loads at the same time, each in a process of its own."""
    context = mp.get_context("spawn")
    queues = [context.Queue() for _ in loads]
    clients = [context.Process(target=_client, args=(queue, *load)) for queue, load in zip(queues, loads, strict=True)]
    for client in clients:
        client.start()
    answers = [queue.get() for queue in queues]
    for client in clients:
        client.join()
    return answers


def throughput(addresses: dict[str, str], seconds: float, rounds: int) -> list[dict[str, object]]:
    """Return requests a second of both servers, in turns."""
    rates: dict[str, list[float]] = {policy: [] for policy in addresses}
    tails: dict[str, list[float]] = {policy: [] for policy in addresses}
    for _ in range(rounds):
        for policy, address in addresses.items():
            both = together(*((address, name, "resnet", seconds, 8, None) for name in ("flood", "modest")))
            rates[policy].append(sum(map(len, both)) / seconds)
            tails[policy].append(float(np.quantile(np.concatenate(both), 0.99)))
    return [
        {"policy": policy, "requests_per_s": rates[policy], "p99_s": float(np.mean(tails[policy]))} for policy in rates
    ]


def floods(addresses: dict[str, str], seconds: float) -> dict[str, list[float]]:
    """Return the p99 of the modest tenant, in seconds: alone, then at each flood."""
    curves: dict[str, list[float]] = {}
    for policy, address in addresses.items():
        modest = (address, "modest", "mobilenet", seconds, 0, 0.05)
        curve = [together(modest)[0]]
        for flood in FLOODS:
            curve.append(together(modest, (address, "flood", "resnet", seconds, flood, None))[0])
        curves[policy] = [float(np.quantile(latencies, 0.99)) for latencies in curve]
    return curves


def tell(rates: list[dict[str, object]], curves: dict[str, list[float]], bound_s: float) -> None:
    """Print both comparisons."""
    mean = {row["policy"]: float(np.mean(row["requests_per_s"])) for row in rates}  # type: ignore[arg-type]
    for row in rates:
        each = ", ".join(f"{rate:.1f}" for rate in row["requests_per_s"])  # type: ignore[attr-defined]
        print(f"{row['policy']:5s} {mean[row['policy']]:7.1f} requests/s ({each}); p99 {1e3 * row['p99_s']:.0f} ms")  # type: ignore[operator]
    print(f"etf / fifo: {mean['etf'] / mean['fifo']:.3f} (wanted: 0.95)\n")
    print("p99 of a tenant within its entitlement, ms")
    print("requests of the other under way   alone" + "".join(f"{flood:8d}" for flood in FLOODS))
    for policy, curve in curves.items():
        print(f"{policy:32s}" + "".join(f"{1e3 * value:8.1f}" for value in curve))
    below = max(curves["etf"][1:]) < bound_s
    print(f"p99 alone / {SHARE} + quantum: {1e3 * bound_s:.1f} ms; etf stays below: {below}")


def draw(curves: dict[str, list[float]], bound_s: float, path: Path) -> None:
    """Draw both curves and the bound."""
    from commonwatt.report.pictures import saved

    with saved(path, (6.0, 3.2)) as figure:
        axes = figure.subplots()
        for policy, curve in curves.items():
            axes.plot(FLOODS, [1e3 * value for value in curve[1:]], "o-", label=policy)
        axes.axhline(1e3 * bound_s, linestyle="--", color="black", label="bound")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(FLOODS, [str(flood) for flood in FLOODS])
        ticks = (10, 20, 50, 100, 200, 500, 1000)
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("requests of the flooding tenant under way")
        axes.set_ylabel("p99 of the other tenant, ms")
        axes.legend()


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    import onnx

    from commonwatt.devices.tiny_models import tiny_model

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        onnx.save(tiny_model("resnet", width=4, depth=2), folder / "resnet.onnx")
        onnx.save(tiny_model("mobilenet", width=6, depth=3), folder / "mobilenet.onnx")
        servers = {policy: start(config(folder, policy)) for policy in ("fifo", "etf")}
        try:
            addresses = {policy: address for policy, (_, address) in servers.items()}
            rates = throughput(addresses, options.seconds, options.rounds)
            curves = floods(addresses, options.seconds)
        finally:
            for process, _ in servers.values():
                process.send_signal(signal.SIGTERM)
                process.wait()
    bound_s = curves["etf"][0] / SHARE + QUANTUM_S
    if options.json:
        print(json.dumps({"throughput": rates, "floods": FLOODS, "p99_s": curves, "bound_s": bound_s}))
    else:
        tell(rates, curves, bound_s)
    if options.plot:
        draw(curves, bound_s, options.plot)


if __name__ == "__main__":
    main()
