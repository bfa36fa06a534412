"""Batches behind the real backend: real models on a real CPU."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from commonwatt.devices.session import open_session  # noqa: E402
from commonwatt.devices.tiny_models import write_tiny_models  # noqa: E402
from commonwatt.model.timeslice_file import TimesliceConfig  # noqa: E402
from commonwatt.serving.backend import TooManyRequestsError  # noqa: E402
from commonwatt.serving.rejections import TooLargeError, refusal_of  # noqa: E402
from commonwatt.serving.sharing import SharingBackend  # noqa: E402


def centring(path):
    """A model that subtracts the mean over all rows: its rows cannot be divided."""
    node = helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=1)
    nodes = [node, helper.make_node("Sub", ["x", "mean"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    graph = helper.make_graph(nodes, "centring", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    write_tiny_models(folder, 0, kinds=("resnet", "transformer"))
    centring(folder / "centring.onnx")
    return folder


@contextmanager
def backend(folder, *, queue_limit=64, one=None, two=None, **more):
    names = ("resnet", "transformer", "centring")
    tenants = [
        {
            "name": tenant, "power_w": 20.0, "queue_limit": queue_limit,
            "models": [{"name": name, "path": f"{name}.onnx"} | (own or {}) for name in names],
        }
        for tenant, own in (("one", one), ("two", two))
    ]  # fmt: skip
    document = {"device": {"kind": "cpu", "segment_s": 0.002}, "tenants": tenants} | more
    made = SharingBackend(open_session(TimesliceConfig.model_validate(document), folder))
    made.start()
    try:
        yield made
    finally:
        made.close()


def images(rows, seed=0):
    return {"image": np.random.default_rng(seed).standard_normal((rows, 3, 32, 32)).astype(np.float32)}


def alone(folder, inputs, name="resnet"):
    (logits,) = onnxruntime.InferenceSession(folder / f"{name}.onnx").run(None, inputs)
    return logits


def sizes(made):
    """Watch the sizes of batches."""
    seen = []
    for loaded in made.session.loaded.values():

        def begin(inputs, *, model=loaded.model, plain=loaded.model.begin):
            seen.append((model.name, len(next(iter(inputs.values())))))
            return plain(inputs)

        loaded.model.begin = begin
    return seen


@pytest.mark.slow
def test_a_large_request_is_divided_and_answered_whole(models):
    with backend(models, one={"max_batch_size": 8}) as made:
        seen, inputs = sizes(made), images(37)
        logits = asyncio.run(made.infer("one", "resnet", inputs))["logits"]
        assert logits == pytest.approx(alone(models, inputs), rel=1e-4, abs=1e-5)
        assert sum(rows for _, rows in seen) == 37
        assert max(rows for _, rows in seen) <= 8
        assert made.counts["one"].requests["ok"] == 1


@pytest.mark.slow
def test_what_a_model_has_done_is_counted(models):
    with backend(models, one={"max_batch_size": 8}) as made:
        for rows in (20, 3):
            asyncio.run(made.infer("one", "resnet", images(rows)))
        counts, settings = made.model_counts("one", "resnet"), made.model_settings("one", "resnet")
        assert (counts.success.count, counts.fail.count, counts.rows) == (2, 0, 23)
        assert sum(rows * count for rows, (count, _) in counts.batches.items()) == 23
        assert counts.success.ns == counts.queue.ns + counts.compute.ns
        assert sum(time_ns for _, time_ns in counts.batches.values()) == made.session.driver.device_ns
        assert settings.max_batch_size == 8 >= settings.preferred_batch_size
        assert made.model_settings("one", "centring").max_batch_size == 0
        asyncio.run(made.unload("one", "resnet"))
        asyncio.run(made.load("one", "resnet"))
        assert made.model_counts("one", "resnet") == counts


@pytest.mark.slow
def test_a_smaller_quantum_means_smaller_batches(models):
    with backend(models, quantum_s=10.0) as made:
        plan = made.session.loaded["one", "resnet"].batching.plan
        before = plan.most_rows()
        made.change({"quantum_s": 1e-6})
        assert plan.most_rows() < before
        assert asyncio.run(made.infer("one", "resnet", images(3)))["logits"].shape == (3, 10)


@pytest.mark.slow
def test_rows_that_belong_together_stay_together_or_are_refused(models):
    with backend(models, one={"max_batch_size": 4}, longest_undivided_step=1e-9) as made:
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        asyncio.run(made.infer("one", "centring", {"x": x[:1]}))  # a single row is never refused
        with pytest.raises(TooLargeError) as refused:
            asyncio.run(made.infer("one", "centring", {"x": x}))
    text = str(refused.value)
    for said in ("model 'centring'", "got 2 rows", "expected at most 1", "depends on the other rows", "1e-10 s"):
        assert said in text
    assert refusal_of(refused.value).status == 413
    with backend(models, one={"max_batch_size": 4}) as made:
        outputs = asyncio.run(made.infer("one", "centring", {"x": np.tile(x, (5, 1))}))
        assert outputs["y"] == pytest.approx(np.tile(x - x.mean(axis=0), (5, 1)))


@pytest.mark.slow
def test_a_model_that_is_not_to_be_batched_says_so_when_it_refuses(models):
    undivided = backend(models, one={"max_batch_size": 0}, longest_undivided_step=1e-9)
    with undivided as made, pytest.raises(TooLargeError, match="its max_batch_size is 0"):
        asyncio.run(made.infer("one", "resnet", images(2)))


@pytest.mark.slow
def test_requests_wait_for_each_other_up_to_the_delay(models):
    waits = {"max_batch_size": 64, "dynamic_batching": {"max_queue_delay_microseconds": 10_000_000}}

    async def ask(made):
        requests = [asyncio.create_task(made.infer("one", "resnet", images(1, seed))) for seed in range(64)]
        gives_up = asyncio.create_task(made.infer("one", "resnet", images(1)))
        await asyncio.sleep(0)
        gives_up.cancel()
        return await asyncio.gather(*requests)

    with backend(models, one=waits, quantum_s=10.0) as made:
        seen = sizes(made)
        plan = made.session.loaded["one", "resnet"].batching.plan
        full = plan.most_rows()
        found = asyncio.run(ask(made))
        for seed, outputs in enumerate(found):
            assert outputs["logits"] == pytest.approx(alone(models, images(1, seed)), rel=1e-4, abs=1e-5)
        assert seen[0][1] == full  # as soon as a batch is full nobody waits any longer
        assert made.counts["one"].requests["ok"] == 64
        assert made.counts["one"].requests["cancelled"] <= 1


@pytest.mark.slow
def test_a_request_that_gives_up_while_it_waits_is_never_run(models):
    waits = {"max_batch_size": 2, "dynamic_batching": {"max_queue_delay_microseconds": 200_000}}

    async def ask(made):
        gives_up = asyncio.create_task(made.infer("one", "resnet", images(1)))
        await asyncio.sleep(0)
        gives_up.cancel()
        await asyncio.gather(gives_up, return_exceptions=True)
        return await made.infer("one", "resnet", images(1, 1))

    with backend(models, one=waits) as made:
        seen = sizes(made)
        assert asyncio.run(ask(made))["logits"].shape == (1, 10)
        assert seen == [("resnet", 1)]
        assert made.counts["one"].requests == {"ok": 1, "refused": 0, "failed": 0, "cancelled": 1}


@pytest.mark.slow
def test_a_full_queue_refuses_those_that_were_held(models):
    waits = {"max_batch_size": 64, "dynamic_batching": {"max_queue_delay_microseconds": 100_000}}

    async def ask(made):
        asked = [made.infer("one", "resnet", images(1)) for _ in range(5)]
        return await asyncio.gather(*asked, return_exceptions=True)

    with backend(models, one=waits, queue_limit=2) as made:
        found = asyncio.run(ask(made))
        assert sum(isinstance(answer, TooManyRequestsError) for answer in found) == 3
        assert made.counts["one"].requests["refused"] == 3
        assert made.counts["one"].requests["ok"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("across", [True, False])
def test_tenants_share_a_batch_only_if_both_allow_it(models, across):
    way = {"max_batch_size": 64, "dynamic_batching": {"across_tenants": True}}
    other = way if across else {"max_batch_size": 64}

    with backend(models, one=way, two=other, quantum_s=10.0) as made:
        seen = sizes(made)
        made.session.driver.scheduler.next = gated(made)

        async def infer(tenant, seed):
            outputs = await made.infer(tenant, "resnet", images(1, seed))
            assert outputs["logits"] == pytest.approx(alone(models, images(1, seed)), rel=1e-4, abs=1e-5)

        async def ask():
            await asyncio.gather(*(infer(tenant, seed) for seed in range(6) for tenant in ("one", "two")))

        asyncio.run(ask())
        assert ([rows for _, rows in seen] == [12]) == across
        used = [made.session.driver.scheduler.tenants[name].time_ns for name in ("one", "two")]
        assert sum(used) == made.session.driver.device_ns
        if across:
            assert abs(used[0] - used[1]) <= 10  # half of the rows each, in some steps


def gated(made):
    """Let the device begin when twelve requests wait."""
    plain, tenants = made.session.driver.scheduler.next, made.session.driver.scheduler.tenants
    begun = []

    def next_():
        if not begun and sum(tenant.waiting for tenant in tenants.values()) < 12:
            return None
        begun.append(1)
        return plain()

    return next_
