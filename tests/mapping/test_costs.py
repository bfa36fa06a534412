"""Cost models: by hand, against the published table, against a literal walk through the tiles, and properties."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data import third_party
from commonwatt.data.layer_files import read_layers
from commonwatt.mapping._encoding import Mapping
from commonwatt.mapping._problem import MappingProblem
from commonwatt.mapping._scoring import makespan
from commonwatt.mapping.costs import _roofline as tiling
from commonwatt.mapping.costs._cost import PLATFORMS, Array
from commonwatt.mapping.costs._job_table import MODELS, costs_on, energy_nj, job_table, terms_nj
from commonwatt.mapping.costs._layers import Layer, Loops
from commonwatt.mapping.costs._roofline import Layout, Roofline, choices, folds, moved
from commonwatt.model.errors import InputError

KINDS = ("fc", "conv", "depthwise", "gemm")
MAESTRO, ROOFLINE = MODELS["maestro"], MODELS["roofline"]


@st.composite
def layers(draw, largest=40):
    kind = draw(st.sampled_from(KINDS))
    size = st.integers(1, largest)
    if kind in {"fc", "gemm"}:
        return Layer(kind, draw(size), draw(size), draw(size) if kind == "gemm" else 1, batch=draw(st.integers(1, 4)))
    r, s, padding = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.integers(0, 2))
    groups = draw(st.integers(1, 3)) if kind == "conv" else 1
    return Layer(
        kind, draw(st.integers(1, largest // 3)) * groups if kind == "conv" else 1,
        draw(st.integers(1, largest // 3)) * groups, max(r, draw(size)), max(s, draw(size)), r, s,
        stride=draw(st.integers(1, 3)), padding=padding, groups=groups, batch=draw(st.integers(1, 3)),
    )  # fmt: skip


arrays = st.builds(
    Array, st.sampled_from(("HB", "LB", "SHI")), st.integers(1, 12), st.integers(1, 12), st.none() | st.just(4096.0)
)


def cost(model, layer, array):
    return model.costs(Loops.of([layer]), array)


@pytest.fixture(scope="module")
def published():
    traces = third_party.folder()
    path = traces.parent / "mapping" / "job_analysis.csv" if traces is not None else None
    if path is None or not path.is_file():
        pytest.skip(f"no published job table: set {third_party.VARIABLE}")
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.data
@pytest.mark.parametrize("dataflow", ["HB", "LB", "SHI"])
def test_the_published_table_row_by_row(published, dataflow):
    rows = [row for row in published if row["dataflow"] == dataflow]
    assert len(rows) == 786
    for high in (32, 64, 128):
        chosen = [row for row in rows if int(row["pe_rows"]) == high]
        loops = Loops.of([Layer(KINDS[int(r["type_code"])], *(int(float(r[n])) for n in "KCYXRS")) for r in chosen])
        found = MAESTRO.costs(loops, Array(dataflow, high))
        for name, ours in (
            ("latency_cycles", found.cycles), ("l2_req_bytes", found.sg_needed), ("l1_req_bytes", found.sl_needed),
        ):  # fmt: skip
            assert ours.tolist() == [float(row[name]) for row in chosen], name
        np.testing.assert_allclose(found.bandwidth, [float(row["req_bw_gbs"]) for row in chosen], rtol=1e-11)
        sg, sl = ([float(row[name]) for row in chosen] for name in ("l2_accesses", "l1_accesses"))
        worst = {"HB": 0.0, "LB": 2e-4, "SHI": 0.2}[dataflow]
        np.testing.assert_allclose(found.sg_accesses, sg, rtol=worst)
        np.testing.assert_allclose(found.sl_accesses, sl, rtol=worst)
        same = np.mean(found.sg_accesses == sg)
        assert same >= {"HB": 1.0, "LB": 0.96, "SHI": 0.87}[dataflow]


@pytest.mark.data
def test_the_published_mean_latencies_and_bandwidths(published):
    """Means over batches as the notes on the reference data give them: HB64 and LB of language layers."""
    found = {}
    for dataflow in ("HB", "LB"):
        rows = [r for r in published if (r["dataflow"], r["pe_rows"], r["type"]) == (dataflow, "64", "GEMM")]
        loops = Loops.of([Layer("gemm", *(int(float(r[n])) for n in "KCYXRS")) for r in rows])
        found[dataflow] = MAESTRO.costs(loops, Array(dataflow, 64)).cycles.mean()
    assert found["LB"] / found["HB"] > 100


def test_maestro_by_hand():
    layer = Layer("conv", 40, 70, 14, 14, 3, 3)
    hb, lb = cost(MAESTRO, layer, Array("HB", 32)), cost(MAESTRO, layer, Array("LB", 32))
    assert hb.cycles.tolist() == [2 * 2 * 144 * 10 + 1]
    assert hb.sg_needed.tolist() == [2 * (32 * 64 * 9 + 64 * 9 + 32)]
    assert lb.cycles.tolist() == [40 * 70 * 4 * 10 + 1]
    assert hb.bandwidth.tolist() == [(32 * 64 * 9 + 64 * 9 + 32) / (2 * 2 * 144 * 10)]


def test_shi_stands_for_lb_in_the_cost_model_of_that_name():
    layer = Layer("conv", 40, 70, 14, 14, 3, 3)
    assert cost(MODELS["shi"], layer, Array("LB", 32)) is not None
    a, b = cost(MODELS["shi"], layer, Array("LB", 32)), cost(MAESTRO, layer, Array("SHI", 32))
    assert a.cycles.tolist() == b.cycles.tolist() == [40 * 70 * 28 + 1]
    assert a.sg_accesses.tolist() == b.sg_accesses.tolist()


@pytest.mark.slow
@given(layers())
def test_maestro_runs_groups_and_images_one_after_another(layer):
    array = Array("HB", 8)
    one = replace(layer, batch=1)
    if layer.kind == "conv":
        one = replace(one, groups=1, k=layer.k // layer.groups, c=layer.c // layer.groups)
    times = layer.batch * (layer.groups if layer.kind == "conv" else 1)
    assert cost(MAESTRO, layer, array).cycles - 1 == times * (cost(MAESTRO, one, array).cycles - 1)
    assert cost(MAESTRO, layer, array).sg_needed == cost(MAESTRO, one, array).sg_needed


def test_roofline_by_hand():
    """A product of 20 x 128 by 128 x 128 on 64 x 64 elements: two by two folds of 20 cycles, each byte moved once."""
    found = cost(ROOFLINE, Layer("gemm", 128, 128, 20), Array("HB", 64))
    assert found.cycles.tolist() == [80]
    assert found.dram_bytes.tolist() == [128 * 128 + 2 * 20 * 128]
    assert found.bandwidth.tolist() == [(128 * 128 + 2 * 20 * 128) / 80]
    low = cost(ROOFLINE, Layer("conv", 2, 3, 14, 14, 3, 3), Array("LB", 1, 36))
    assert low.cycles.tolist() == [2 * 3 * 12 * 3]  # 12 rows of the output by 3 elements each, 12 columns, 3 steps
    assert cost(ROOFLINE, Layer("conv", 2, 3, 14, 14, 3, 3), Array("SHI", 6, 6)).cycles.tolist() == [2 * 3 * 4 * 9]
    depthwise = cost(ROOFLINE, Layer("depthwise", 1, 100, 14, 14, 3, 3, stride=2, padding=1), Array("HB", 64))
    assert depthwise.cycles.tolist() == [2 * 49 * 9]


def test_a_fully_connected_layer_needs_its_weights():
    """What the published model charges 8,400 bytes for moves 16.8 million."""
    layer, array = Layer("fc", 4096, 4096), Array("HB", 128, sg_bytes=580 * 1024.0)
    honest, published = cost(ROOFLINE, layer, array), cost(MAESTRO, layer, array)
    assert honest.dram_bytes.tolist() == [4096 * 4096 + 2 * 4096]
    assert (published.bandwidth * published.cycles).tolist() == pytest.approx([8384], rel=1e-3)
    assert published.bandwidth.tolist() == pytest.approx([2.05], abs=0.005)


@pytest.mark.slow
@settings(max_examples=200)
@given(layers(), arrays)
def test_roofline_is_physical(layer, array):
    found, loops = cost(ROOFLINE, layer, array), Loops.of([layer])
    if not found.fits[0]:
        assert array.sg_bytes is not None
        assert found.sg_needed[0] > array.sg_bytes
        return
    assert found.macs[0] == layer.macs
    assert found.cycles[0] * array.elements >= layer.macs
    assert found.dram_bytes[0] >= layer.weights + layer.inputs + layer.outputs == loops.least_bytes[0]
    assert found.bandwidth[0] * found.cycles[0] == pytest.approx(found.dram_bytes[0])
    assert found.sg_needed[0] <= (array.sg_bytes or np.inf)
    rows, cols = np.array([float(array.rows)]), np.array([float(array.cols)])
    assert found.cycles[0] >= ROOFLINE.cycles(loops, array, rows, cols)[0]
    assert found.sg_accesses[0] >= found.dram_bytes[0]
    assert found.sl_accesses[0] >= 4 * layer.macs
    ample = cost(ROOFLINE, layer, replace(array, sg_bytes=None))
    assert ample.cycles[0] == ROOFLINE.cycles(loops, array, rows, cols)[0] <= found.cycles[0]
    assert ample.dram_bytes[0] == loops.least_bytes[0]


def fetched(order, counts, sizes, spill):
    """Walk through all tiles in an order of loops, with one tile of each tensor kept; return what is moved."""
    moves, kept, sums = 0.0, {}, {}
    depends = {"w": "kc", "i": "cp", "o": "kp"}
    ranges = [range(counts[loop]) for loop in order]
    for at in np.ndindex(*(len(r) for r in ranges)):
        place = dict(zip(order, at, strict=True))
        for tensor, loops in depends.items():
            tile = tuple(place[loop] for loop in loops)
            if kept.get(tensor) == tile:
                continue
            kept[tensor] = tile
            if tensor != "o":
                moves += sizes[tensor]
            else:
                sums[tile] = sums.get(tile, 0) + 1
    return moves + sum(sizes["o"] * (1 + spill * (visits - 1)) for visits in sums.values())


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(1, 4)] * 3), st.tuples(*[st.integers(1, 3)] * 3))
def test_moved_is_what_a_walk_through_the_tiles_moves(counts, tile):
    """Products whose tiles divide them, so that each tile is as large as the other."""
    (nk, nc, ny), (k, c, y) = counts, tile
    layer = Layer("gemm", nk * k, nc * c, ny * y)
    loops = Loops.of([layer])
    tried = choices(loops, Layout(float(k), float(c), float(y), 1.0))
    table = moved(loops, tried)
    at = (
        tried.k[:, 0, 0].tolist().index(k), tried.c[0, :, 0].tolist().index(c), tried.rows[0, 0].tolist().index(y),
    )  # fmt: skip
    sizes = {"w": k * c, "i": c * y, "o": k * y}
    number = {"k": nk, "c": nc, "p": ny}
    assert table[at] == min(fetched(order, number, sizes, 8.0) for order in permutations("kcp"))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60))
def test_folds_are_counted_tile_by_tile(size, tile, unit):
    tile = min(tile, size)
    counted = sum(-(-min(tile, size - start) // unit) for start in range(0, size, tile))
    assert folds(size, tile, unit) == counted


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(layers(largest=12), st.sampled_from(("HB", "LB", "SHI")), st.integers(1, 24), st.sampled_from(list(MODELS)))
def test_the_flexible_shape_is_the_best_of_all(layer, dataflow, elements, name):
    array = Array(dataflow, 1, elements, 2000.0, flexible=True)
    found = costs_on(MODELS[name], Loops.of([layer]), array)
    fixed = [
        cost(MODELS[name], layer, replace(array, rows=rows, cols=elements // rows)).cycles[0]
        for rows in range(1, elements + 1)
    ]
    assert found.cycles[0] == min(fixed)
    if found.fits[0]:
        assert found.rows[0] * found.cols[0] <= elements


def test_a_flexible_array_uses_what_a_fixed_one_leaves_idle():
    layer = Layer("conv", 16, 128, 14, 14, 1, 1)
    fixed, flexible = Array("HB", 32), Array("HB", 32, flexible=True)
    assert cost(ROOFLINE, layer, fixed).cycles.tolist() == [2 * 196]
    found = costs_on(ROOFLINE, Loops.of([layer]), flexible)
    assert (found.cycles.tolist(), found.rows.tolist(), found.cols.tolist()) == ([196], [16], [128])


def test_energy_has_all_terms():
    found = cost(ROOFLINE, Layer("gemm", 128, 128, 20), Array("HB", 64))
    parts = terms_nj(found)
    assert parts["mac"].tolist() == pytest.approx([0.00023 * 128 * 128 * 20])
    assert parts["dram"].tolist() == pytest.approx([0.00023 * 200 * (128 * 128 + 2 * 20 * 128)])
    assert all((part > 0).all() for part in parts.values())
    assert energy_nj(found).tolist() == pytest.approx([sum(part[0] for part in parts.values())])


def test_a_table_has_a_row_for_each_layer_and_looks_at_equal_ones_once():
    calls = []

    class Counted(Roofline):
        def costs(self, loops, array):
            calls.append(len(loops))
            return super().costs(loops, array)

    batch = [Layer("fc", 64, 64, name="a"), Layer("gemm", 64, 64, 4), Layer("fc", 64, 64, name="b")]
    table = job_table(batch, PLATFORMS["S5"], Counted())
    assert table.latency.shape == (3, 8)
    assert calls == [2] * 4  # two layers on four kinds of array
    assert table.latency[0].tolist() == table.latency[2].tolist() != table.latency[1].tolist()
    assert (table.energy > 0).all()


def test_settings_are_those_of_table_4():
    assert {name: [array.label for array in arrays] for name, arrays in PLATFORMS.items()} == {
        "S1": ["HB32"] * 4,
        "S2": ["HB32"] * 3 + ["LB32"],
        "S3": ["HB128"] * 8,
        "S4": ["HB128"] * 7 + ["LB128"],
        "S5": ["HB128"] * 3 + ["LB128"] + ["HB64"] * 3 + ["LB64"],
        "S6": ["HB128"] * 7 + ["LB128"] + ["HB64"] * 7 + ["LB64"],
        "S1-flexible": ["HB32-flexible"] * 4,
        "S3-flexible": ["HB128-flexible"] * 8,
    }
    sizes = {array.label: array.sg_bytes / 1024 for array in PLATFORMS["S6"]}
    assert sizes == {"HB128": 580, "LB128": 434, "HB64": 291, "LB64": 218}


@pytest.mark.parametrize("model", MODELS.values())
def test_a_layer_that_fits_nowhere_is_refused(model):
    layer, tiny = Layer("conv", 64, 64, 14, 14, 3, 3, name="wide"), Array("HB", 32, sg_bytes=16.0, flexible=True)
    with pytest.raises(InputError, match=r"jobs.0 \(wide\).*smallest tile fits the buffers"):
        job_table([layer], [tiny], model)
    with pytest.raises(InputError, match="at least one layer"):
        job_table([], [tiny], model)
    with pytest.raises(InputError, match="at least one sub-accelerator"):
        job_table([layer], [], model)


def test_the_published_model_looks_at_buffers_of_flexible_arrays_only():
    """As the published code does: a depth-wise layer of its batches is larger than the buffer Table 4 gives LB32."""
    layer, array = Layer("depthwise", 1, 1152, 14, 14, 5, 5), Array("LB", 32, sg_bytes=110 * 1024.0)
    found = cost(MAESTRO, layer, array)
    assert found.sg_needed[0] > array.sg_bytes
    assert found.fits[0]
    assert not cost(MAESTRO, layer, replace(array, flexible=True)).fits[0]


def test_scratchpads_of_elements_are_kept():
    layer = Layer("conv", 8, 8, 20, 20, 7, 7)
    assert cost(ROOFLINE, layer, Array("HB", 8, sl_bytes=200.0)).sl_needed.tolist() == [4 * 49 + 4]
    assert cost(ROOFLINE, layer, Array("HB", 8, sl_bytes=200.0)).fits[0]
    assert not cost(ROOFLINE, layer, Array("HB", 8, sl_bytes=199.0)).fits[0]


@pytest.mark.parametrize(("more", "said"), [({"rows": 0}, "pe_rows"), ({"sg_bytes": 0.0}, "sg_bytes")])
def test_an_array_of_nothing_is_refused(more, said):
    with pytest.raises(InputError, match=said):
        Array("HB", **{"rows": 1, **more})


@pytest.mark.slow
@given(
    st.integers(1, 40), st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 6), st.integers(0, 9)
)
def test_inputs_under_tiles_are_counted_one_by_one(outputs, tile, filters, stride, padding, beyond):
    tile = min(tile, outputs)
    size = max(1, (outputs - 1) * stride + filters - 2 * padding + min(beyond, stride - 1))
    counted = 0
    for start in range(0, outputs, tile):
        end = min(start + tile, outputs)
        counted += sum(0 <= at < size for at in range(start * stride - padding, (end - 1) * stride - padding + filters))
    within, everywhere = tiling._extent(*map(float, (size, outputs, tile, filters, stride, padding)))
    assert everywhere == counted
    assert within == min(size, (tile - 1) * stride + filters)


def test_a_layer_of_a_billion_is_costed_at_once():
    layer = Layer("conv", 10**9, 10**9, 10**9, 10**9, 3, 3)
    for model in MODELS.values():
        found = cost(model, layer, Array("HB", 128, flexible=True))
        assert found.cycles[0] > 1e30


def _every(size, unit):
    return [float(i) for i in range(1, int(size) + 1)]


def _every_tile(loops, layout):
    out_y, out_x = float(loops.out_y[0]), float(loops.out_x[0])
    tall = [
        (rows, tiling._extent(float(loops.y[0]), out_y, rows, float(loops.r[0]), 1.0, 0.0)) for rows in _every(out_y, 1)
    ]
    wide = [
        (cols, tiling._extent(float(loops.x[0]), out_x, cols, float(loops.s[0]), 1.0, 0.0)) for cols in _every(out_x, 1)
    ]
    return [
        tiling.Pixels(1.0, rows, cols, high * broad, all_high * all_broad, -(-out_y // rows) * -(-out_x // cols))
        for rows, (high, all_high) in tall
        for cols, (broad, all_broad) in wide
    ]


@pytest.mark.slow
def test_tiles_are_near_the_best_of_all_tiles(monkeypatch):
    """Against all tile sizes of small layers in tight buffers: nothing is better than they allow, and little worse."""
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(120):
        taps, side = int(rng.choice([1, 3])), int(rng.integers(3, 12))
        layer = Layer("conv", int(rng.integers(1, 24)), int(rng.integers(1, 24)), side, side, taps, taps)
        array = Array(str(rng.choice(["HB", "LB", "SHI"])), int(rng.choice([4, 8])), 8, float(rng.choice([500, 3000])))
        cases.append((layer, array, cost(ROOFLINE, layer, array)))
    monkeypatch.setattr(tiling, "_ladder", _every)
    monkeypatch.setattr(tiling, "_pixels", _every_tile)
    cycles, moves = [], []
    for layer, array, found in cases:
        best = cost(ROOFLINE, layer, array)
        assert found.fits[0] == best.fits[0]
        assert found.cycles[0] >= best.cycles[0]
        cycles.append(found.cycles[0] / best.cycles[0])
        if cycles[-1] == 1:
            assert found.dram_bytes[0] >= best.dram_bytes[0]
            moves.append(found.dram_bytes[0] / best.dram_bytes[0])
    assert len(moves) > 100
    assert np.mean(cycles) < 1.05
    assert np.exp(np.mean(np.log(moves))) < 1.1


@pytest.mark.slow
@pytest.mark.data
def test_published_makespans_from_layers_and_platforms():
    """From the batches' layers to the makespans of the published evaluator, by nothing but what is here."""
    traces = third_party.folder()
    home = traces.parent / "mapping" if traces is not None else None
    if home is None or not (home / "makespans.jsonl").is_file():
        pytest.skip(f"no published makespans: set {third_party.VARIABLE}")
    tables, compared = {}, 0
    for line in (home / "makespans.jsonl").read_text().splitlines():
        case = json.loads(line)
        if "tied" in case["kind"]:
            continue  # ties run in an order of that table's own
        key = case["batch"], case["instance"], case["setting"]
        if key not in tables:
            batch = read_layers(home / "instances" / f"batch_{key[0]}" / f"insts{key[1]}.csv")
            tables[key] = job_table(batch, PLATFORMS[key[2]], MAESTRO)
        problem = MappingProblem(tables[key].latency, tables[key].bandwidth, float(case["bw_gbs"]))
        mapping = Mapping(np.array(case["accel"], dtype=np.int64), np.array(case["priority"], dtype=np.float64))
        assert makespan(problem, mapping) == pytest.approx(case["makespan_cycles"], rel=1e-9)
        compared += 1
    assert compared == 1584
