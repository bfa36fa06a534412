"""Lists of layers as files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data import third_party
from commonwatt.data.layer_files import layers_text, read_layers, write_layers
from commonwatt.mapping.costs._layers import Layer
from commonwatt.model.errors import InputError

HEADER = "model,layer,kind,k,c,y,x,r,s,stride,padding,groups,batch,task,repeat\n"


def read(tmp_path, text):
    path = tmp_path / "layers.csv"
    path.write_text(text, encoding="utf-8")
    return read_layers(path)


def test_all_columns(tmp_path):
    rows = "net,stem,conv,64,3,224,224,7,7,2,3,1,4,vision,1\nnet,dw,depthwise,1,64,56,56,3,3,1,1,1,1,vision,2\n"
    stem, *others = read(tmp_path, HEADER + rows)
    assert stem == Layer("conv", 64, 3, 224, 224, 7, 7, 2, 3, 1, 4, "stem", "net", "vision")
    assert (stem.out_y, stem.macs) == (112, 4 * 64 * 3 * 49 * 112 * 112)
    assert others == [Layer("depthwise", 1, 64, 56, 56, 3, 3, padding=1, name="dw", model="net", task="vision")] * 2


def test_what_may_be_left_out(tmp_path):
    """And the order of columns is free; ``name`` stands for ``layer``."""
    assert read(tmp_path, "c,kind,name,k,y\n5,fc,a,7,\n5,gemm,b,7,20\n") == (
        Layer("fc", 7, 5, name="a"),
        Layer("gemm", 7, 5, 20, name="b"),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind,k,c\nfc,0,3\n", ["line 2", "'k'", "'0'", "a whole number, 1 or more"]),
        ("kind,k,c\nfc,,3\n", ["line 2", "'k'", "'nothing'"]),
        ("kind,k,c\nfc,2.5,3\n", ["line 2", "'k'", "'2.5'"]),
        ("kind,k,c\nfc,nan,3\n", ["'k'", "'nan'"]),
        ("kind,k,c\nfc,inf,3\n", ["'k'", "'inf'"]),
        ("kind,k,c\nfc,1e12,3\n", ["'k'", "'1e12'"]),
        ("kind,k,c\nfc,x,3\n", ["'k'", "'x'"]),
        ("kind,k,c\nconv,1,3\n", ["'y'", "a column of this name"]),
        ("kind,k,c,y\ngemm,1,3,\n", ["line 2", "'y'", "'nothing'"]),
        ("kind,k,c\npool,1,3\n", ["line 2", "'kind'", "'pool'", "one of fc, conv, depthwise, gemm"]),
        ("k,c\n1,3\n", ["'kind'", "a column of this name"]),
        ("kind,k,c,colour\nfc,1,3,red\n", ["'colour'", "columns among model"]),
        ("kind,k,c,task\nfc,1,3,sound\n", ["'task'", "'sound'", "vision"]),
        ("kind,k,c,repeat\nfc,1,3,0\n", ["'repeat'", "'0'"]),
        ("kind,k,c,repeat\nfc,1,3,999999999\n", ["'repeat'", "no more than"]),
        ("kind,k,c,y,x,r,s\nconv,1,3,4,4,5,5\n", ["line 2", "'r'", "'5'", "a filter no larger"]),
        ("kind,k,c,y,x,r,s\ndepthwise,2,3,4,4,3,3\n", ["line 2", "'k'", "'2'"]),
        ("kind,k,c,groups\nfc,2,3,2\n", ["line 2", "'groups'"]),
        ("kind,k,c\n", ["at least one row"]),
        ("1,1,20,512,128,1,1,1\n", ["line 1", "9 cells", "'8 cells'"]),
        ("1,1,20,512,128,1,1,1,4\n", ["line 1", "'type'", "'4'"]),
        ("\n1,1,20,0,128,1,1,1,3\n", ["line 2", "'d2'", "'0'"]),
        ("1,1,20,,128,1,1,1,3\n", ["line 1", "'d2'", "'nothing'"]),
        ("1,1,2,32,5,5,3,3,2\n", ["line 1", "'k'", "'2'"]),
    ],
)
def test_bad_files(tmp_path, text, says):
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    line = str(caught.value)
    assert "layers.csv" in line
    assert [part for part in says if part not in line] == []


def test_reference_rows(tmp_path):
    text = "1,1,10,20,1,1,1,1,0\n1,1,64,3,14,12,3,5,1\n1,1,1,32,14,12,3,3,2\n1,1,20,512,128,1,1,1,3\n"
    assert [(x.kind, x.k, x.c, x.y, x.x, x.r, x.s) for x in read(tmp_path, text)] == [
        ("fc", 10, 20, 1, 1, 1, 1),
        ("conv", 64, 3, 14, 12, 3, 5),
        ("depthwise", 1, 32, 14, 12, 3, 3),
        ("gemm", 512, 128, 20, 1, 1, 1),
    ]


@pytest.mark.data
def test_every_reference_batch():
    traces = third_party.folder()
    files = sorted(traces.parent.glob("mapping/instances/*/*.csv")) if traces is not None else []
    if not files:
        pytest.skip(f"no reference batches: set {third_party.VARIABLE}")
    assert [len(read_layers(file)) for file in files] == [100] * 20


sizes = st.integers(1, 40)
names = st.text("abc ,\"'é-_.0", max_size=5).map(str.strip)


@st.composite
def layers(draw):
    kind = draw(st.sampled_from(["fc", "conv", "depthwise", "gemm"]))
    extra = {"groups": 1}
    if kind in ("conv", "depthwise"):
        y, x = draw(sizes), draw(sizes)
        extra |= {"y": y, "x": x, "r": draw(st.integers(1, y)), "s": draw(st.integers(1, x))}
        extra |= {"stride": draw(sizes), "padding": draw(st.integers(0, 4))}
    elif kind == "gemm":
        extra["y"] = draw(sizes)
    k, c = (1 if kind == "depthwise" else draw(sizes)), draw(sizes)
    if kind == "conv":
        extra["groups"] = draw(st.integers(1, 4))
        k, c = k * extra["groups"], c * extra["groups"]
    task = draw(st.sampled_from([None, "vision", "language", "recommendation"]))
    return Layer(kind, k, c, **extra, batch=draw(sizes), name=draw(names), model=draw(names), task=task)


@pytest.mark.slow
@given(st.lists(layers(), min_size=1, max_size=6), st.integers(1, 3))
def test_what_is_written_is_read_back(tmp_path_factory, made, times):
    made = [layer for layer in made for _ in range(times)]
    path = tmp_path_factory.mktemp("layers") / "layers.csv"
    write_layers(path, made)
    assert list(read_layers(path)) == made
    assert path.read_text(encoding="utf-8") == layers_text(made)
