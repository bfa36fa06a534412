"""A backend that computes nothing worth waiting for, and a real server before it in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commonwatt.devices.base import TensorSpec
from commonwatt.model.errors import InputError
from commonwatt.model.histogram import Histogram
from commonwatt.model.timeslice_file import ModelServerSpec
from commonwatt.serving.backend import (
    BackendError,
    ModelDescription,
    NotReadyError,
    TooManyRequestsError,
    UnavailableError,
)
from commonwatt.serving.keys import Keys
from commonwatt.serving.metrics import Measurements, TenantMeasurements
from commonwatt.serving.server import serve
from commonwatt.serving.triton_documents import ModelCounts, ModelSettings

ANN, BOB, OPERATOR = "key-of-ann", "key-of-bob", "key-of-operator"
KEYS = Keys.of({"ann": ANN, "bob": BOB}, OPERATOR)
KINDS = [
    "BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64", "FP16", "FP32", "FP64", "BYTES",
]  # fmt: skip


def model(name, inputs, outputs=None, *, ready=True):
    def specs(rows):
        return tuple(TensorSpec(*row) for row in rows)

    return ModelDescription(name, "onnxruntime_onnx", ready, specs(inputs), specs(outputs or inputs))


def models_of_ann():
    x, y = ("x", "FP32", (-1, 3)), ("y", "FP32", (-1, 3))
    rows = [
        model("double", [x], [y]),
        model("big", [("x", "FP32", (-1,))], [("y", "FP32", (-1,))]),
        model("two", [("a", "FP32", (2,)), ("b", "INT64", ())], [("sum", "FP32", (2,)), ("b", "INT64", ())]),
        *(model(name, [x], [y]) for name in ("slow", "full", "gone", "broken", "wrong", "nan")),
        replace(model("asleep", [x], [y]), ready=False, reason="unloaded"),
        *(
            replace(model("many", [x], [y]), version=n, ready=n < 10, reason="" if n < 10 else "new")
            for n in (1, 2, 10)
        ),
        replace(model("bad-file", [x], [y]), ready=False),
        *(model(f"echo-{kind}", [("x", kind, (-1, -1))]) for kind in KINDS),
        *(model(f"scalar-{kind}", [("x", kind, ())]) for kind in KINDS),
    ]
    return {row.key: row for row in rows}


class FakeBackend:
    """Models by what they are for; ``slow`` waits for ``go``."""

    def __init__(self):
        self.of = {"ann": models_of_ann(), "bob": {"secret": model("secret", [("x", "FP32", (1,))])}}
        self.is_ready = True
        self.go = asyncio.Event()
        self.begun = threading.Event()
        self.given_up = threading.Event()
        self.seen = []
        self.now = {"policy": "etf", "phi": 0.7, "quantum_s": 0.1, "tenants": {"ann": {"weight": 1.0}}}

    def ready(self):
        return self.is_ready

    def models(self, tenant):
        return tuple(self.of[tenant].values())

    def versions(self, tenant, name):
        return tuple(one for one in self.of[tenant].values() if one.name == name)

    def model_settings(self, tenant, name):
        return ModelSettings(8, 4, 100) if name == "double" else ModelSettings()

    def model_counts(self, tenant, name):
        counts = ModelCounts(rows=5, batches={2: (2, 700), 1: (1, 300)}, last_ms=1_700_000_000_000)
        counts.success.add(1500), counts.queue.add(400), counts.compute.add(1100)
        return counts

    async def load(self, tenant, name):
        if name == "bad-file":
            raise BackendError("model 'bad-file': its file is not ONNX")
        self.of[tenant][name] = replace(self.of[tenant][name], ready=True, reason="")

    async def unload(self, tenant, name):
        self.of[tenant][name] = replace(self.of[tenant][name], ready=False, reason="unloaded")

    async def infer(self, tenant, name, inputs):
        self.seen.append((tenant, name))
        if name == "slow":
            await self._wait()
        if name in {"many", "many/2", "many/10"}:
            return {"y": inputs["x"] * int(name.partition("/")[2] or 1)}
        if name in {"double", "slow", "big"}:
            return {"y": inputs["x"] * 2}
        if name == "two":
            return {"sum": inputs["a"] + np.float32(inputs["b"]), "b": inputs["b"]}
        if name.startswith(("echo-", "scalar-")) or name == "secret":
            return {"x": inputs["x"]}
        if name == "nan":
            return {"y": inputs["x"] * np.float32("nan")}
        if name == "wrong":
            return {"y": inputs["x"].astype(np.complex64)}
        raise {
            "full": TooManyRequestsError("tenant 'ann': 64 requests wait", 1.2),
            "gone": UnavailableError("the device is gone"),
            "asleep": NotReadyError("asleep"),
            "broken": ZeroDivisionError("secret detail"),
        }[name]

    async def _wait(self):
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise

    def settings(self):
        return self.now

    def change(self, settings):
        if set(settings) - set(self.now):
            raise InputError("one of policy, phi, quantum_s, tenants", field=next(iter(set(settings) - set(self.now))))
        self.now = {**self.now, **settings}
        return self.now

    def status(self):
        return {"tenants": {"ann": {"time_s": 1.5}}}

    def measurements(self):
        latency = Histogram()
        latency.observe(0.003)
        ann = TenantMeasurements("ann", 1.5, 20.0, 0.75, 0.5, 0.5, 0.35, 3, {"ok": 7, "refused": 1}, latency)
        bob = TenantMeasurements('b"o\nb', 0.5, 20.0, 0.25, 0.5, 0.5, 0.35, 0, {})
        return Measurements((ann, bob), 2.0, 10.0, 0.7, "etf", "modelled")


def skip_without_the_extra():
    for package in ("starlette", "uvicorn", "prometheus_client", "tritonclient.grpc"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of third parties, at import
            pytest.importorskip(package, exc_type=ImportError)


class Served:
    """A server in a thread: where it is, and what stands behind it."""

    def __init__(self, keys=KEYS, backend=None, folder=Path(), **spec):
        self.backend = backend or FakeBackend()
        self.keys, self.folder = keys, folder
        self.spec = ModelServerSpec(**{"rest_port": 0, "grpc_port": 0, "largest_request_mb": 4.0, **spec})
        self.error = self.at = self.loop = None
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self):
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await serve(self.backend, self.keys, self.spec, on_ready=self._ready, stop=self.stop, folder=self.folder)
        except Exception as error:
            self.error = error
        finally:
            self._up.set()

    def _ready(self, addresses):
        self.at = addresses
        self._up.set()

    def soon(self, call):
        """Do *call* in the server's loop."""
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(call)

    def end(self, timeout=120):
        """Wait until it has stopped by itself."""
        self._thread.join(timeout)
        assert not self._thread.is_alive()

    def __enter__(self):
        skip_without_the_extra()
        return self.start()

    def start(self):
        self._thread.start()
        assert self._up.wait(120)
        if self.error is not None:
            self._thread.join()
            raise self.error
        return self

    def __exit__(self, *_):
        self.soon(self.backend.go.set)
        self.soon(self.stop.set)
        self.end()
