"""Layers of PyTorch modules: counted by hand, and against PyTorch's own counter of operations."""

from __future__ import annotations

import warnings
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.model_layers.from_torch import collect_module, collect_program, layers_of
from commonwatt.mapping.costs._layers import Layer
from commonwatt.model.errors import InputError

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow
nn = torch.nn


def counted(module, *inputs):
    """Multiply-accumulates by PyTorch's counter, which runs the module."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops() // 2


def macs(layers):
    return sum(layer.macs for layer in layers)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.apart = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.grouped = nn.Conv2d(8, 12, (1, 3), groups=4)
        self.norm = nn.BatchNorm2d(12)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.grouped(self.apart(self.stem(x)))))
        return self.head(self.head.weight.new_zeros(1) + x.mean((2, 3)))


@pytest.mark.slow
def test_a_module_counted_by_hand():
    found = layers_of(Block().eval(), [torch.empty(2, 3, 32, 20)], model="block")
    assert found == (
        Layer("conv", 8, 3, 32, 20, 3, 3, 2, 1, 1, 2, "stem", "block"),
        Layer("depthwise", 1, 8, 16, 10, 3, 3, 1, 1, 1, 2, "apart", "block"),
        Layer("conv", 12, 8, 16, 10, 1, 3, 1, 0, 4, 2, "grouped", "block"),
        Layer("gemm", 5, 12, 2, name="head", model="block"),
    )
    assert [layer.macs for layer in found] == [
        2 * 8 * 3 * 9 * 160,
        2 * 8 * 9 * 160,
        2 * 12 * 2 * 3 * 16 * 8,
        2 * 5 * 12,
    ]
    assert sum(layer.weights for layer in found) == 8 * 3 * 9 + 8 * 9 + 12 * 2 * 3 + 60


def test_the_module_stays_as_it_was():
    module = Block().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = layers_of(module, [torch.empty(1, 3, 8, 8)])
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not module.stem._forward_hooks
    assert not module.stem._forward_pre_hooks
    with torch.device("meta"):
        shapes_only = Block().eval()
        assert layers_of(shapes_only, {"x": torch.empty(1, 3, 8, 8)}) == found


@st.composite
def convolutions(draw):
    directions = draw(st.integers(1, 2))
    groups = draw(st.integers(1, 3))
    sizes = st.integers(1, 3)
    one = [draw(st.tuples(*[sizes] * directions)) for _ in range(4)]
    c, k = groups * draw(sizes), groups * draw(sizes)
    kind = draw(st.sampled_from(["Conv", "ConvTranspose"]))
    stride, padding, dilation, taps = one
    padding = tuple(min(pad, tap // 2) for pad, tap in zip(padding, taps, strict=True))
    module = getattr(nn, f"{kind}{directions}d")(c, k, taps, stride, padding, groups=groups, dilation=dilation)
    side = draw(st.integers(9, 12))
    return module, torch.empty(draw(sizes), c, *range(side, side + directions))


@pytest.mark.slow
@settings(max_examples=60)
@given(convolutions())
def test_convolutions_of_every_form(case):
    module, x = case
    (layer,) = layers_of(module, [x])
    assert layer.macs == counted(module, x)
    assert layer.weights == module.weight.numel()
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        assert layer.outputs == module(x).numel()
        plain = len(set(module.stride)) == 1 and set(module.dilation) == {1} and len(set(module.padding)) == 1
        assert not plain or layer.inputs >= x.numel()


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 5)),
                                    ((2, 1, 3, 4), (5, 4, 3)), ((3, 4), (2, 4, 5))])  # fmt: skip
def test_products(shapes):
    class Product(nn.Module):
        def forward(self, a, b):
            return a @ b

    a, b = (torch.empty(shape) for shape in shapes)
    out = (a @ b).numel()
    found = layers_of(Product(), [a, b])
    assert macs(found) == out * shapes[0][-1] == counted(Product(), a, b)
    assert macs(layers_of(Product(), [a[..., None, :], b])) == macs(found) if len(shapes[0]) == 1 else True


def test_attention_is_one_group_for_each_head():
    layer = nn.TransformerEncoderLayer(32, 4, dim_feedforward=64, batch_first=True).eval()
    x = torch.empty(2, 10, 32)
    found = layers_of(layer, [x])
    by_hand = 20 * (4 * 32 * 32 + 2 * 32 * 64) + 2 * 2 * 4 * 10 * 10 * 8
    assert macs(found) == by_hand
    products = [one for one in found if one.groups > 1]
    assert [(one.groups, one.k // one.groups, one.c // one.groups, one.y) for one in products] == [
        (8, 10, 8, 10), (8, 8, 10, 10),
    ]  # fmt: skip
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrent_networks(kind, gates):
    module = getattr(nn, kind)(10, 20).eval()
    assert macs(layers_of(module, [torch.empty(5, 3, 10)])) == gates * 20 * (10 + 20) * 5 * 3


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return torch.fft.rfft(self.linear(x)).abs()


def test_what_is_not_supported_is_listed_and_counts_only_if_asked():
    x = torch.empty(4, 6)
    with pytest.raises(InputError, match=r"aten::_fft_r2c \(1\)") as caught:
        layers_of(Fourier(), [x])
    assert "--ignore-unsupported" in str(caught.value)
    assert macs(layers_of(Fourier(), [x], ignore_unsupported=True)) == 4 * 36
    with pytest.raises(InputError, match="convolution in 3 directions"):
        layers_of(nn.Conv3d(1, 1, 3), [torch.empty(1, 1, 5, 5, 5)])


def test_modules_that_cannot_be_followed():
    class Asks(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(InputError, match="with shapes alone"):
        layers_of(Asks(), [torch.empty(3)])
    with pytest.raises(InputError, match="with shapes alone"):
        layers_of(nn.Linear(3, 4), [torch.empty(2, 5)])
    with pytest.raises(InputError, match="at least one product"):
        layers_of(nn.ReLU(), [torch.empty(3)])


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "block.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = torch.export.Dim("batch", min=2, max=64)
        exported = torch.export.export(Block().eval(), (torch.zeros(4, 3, 8, 8),), dynamic_shapes={"x": {0: batch}})
        torch.export.save(exported, path)
    return path


@pytest.mark.slow
def test_an_exported_program_has_the_layers_of_its_module(program):
    with pytest.raises(InputError, match=r"give a size to (\w+) \(x\[0\]\), as in --dim \w+=1") as caught:
        collect_program(program, {})
    name = str(caught.value).rpartition("--dim ")[2].partition("=")[0]
    found = collect_program(program, {name: 6})
    expected = collect_module(Block().eval(), [torch.empty(6, 3, 8, 8)], model="block")
    assert found.layers == expected.layers
    with pytest.raises(InputError, match=r"'dim'.*'other'"):
        collect_program(program, {name: 6, "other": 1})


def test_files_that_are_no_programs(tmp_path):
    (tmp_path / "bad.pt2").write_bytes(b"bad")
    with pytest.raises(InputError, match=r"bad\.pt2.*a PyTorch program"):
        collect_program(tmp_path / "bad.pt2", {})
    with pytest.raises(InputError, match="an existing file"):
        collect_program(tmp_path / "none.pt2", {})


def test_elements_of_a_layer_agree_with_its_tensors():
    x = torch.empty(2, 6, 9, 7)
    (layer,) = layers_of(nn.Conv2d(6, 4, 3, padding=1), [x])
    assert (layer.inputs, layer.outputs) == (x.numel(), prod((2, 4, 9, 7)))
