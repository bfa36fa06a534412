"""The vision networks of G#'s Table 3 and ShuffleNet-V2, as torchvision defines them, for one 224 x 224 image."""

from __future__ import annotations

from collections.abc import Callable

from commonwatt.data.networks.drawing import Picture

__all__ = ["VISION"]


def alexnet() -> Picture:
    """AlexNet, one column (Krizhevsky 2014)."""
    net = Picture("alexnet", "vision")
    for place, (k, r, stride, padding, pooled) in enumerate(
        [(64, 11, 4, 2, True), (192, 5, 1, 2, True), (384, 3, 1, 1, False), (256, 3, 1, 1, False), (256, 3, 1, 1, True)]
    ):
        net.conv(f"conv{place + 1}", k, r, stride=stride, padding=padding, extra=k)
        if pooled:
            net.pool(3, 2)
    _classifier(net, 256 * 6 * 6)
    return net


def vgg16() -> Picture:
    """VGG16, configuration D without batch norm (Simonyan and Zisserman 2014, Table 1)."""
    net = Picture("vgg16", "vision")
    for stage, (k, convs) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
        for place in range(convs):
            net.conv(f"conv{stage + 1}_{place + 1}", k, 3, extra=k)
        net.pool(2, 2)
    _classifier(net, 512 * 7 * 7)
    return net


def _classifier(net: Picture, features: int) -> None:
    net.fc("fc1", features, 4096)
    net.fc("fc2", 4096, 4096)
    net.fc("fc3", 4096, 1000)


def resnet18() -> Picture:
    """ResNet18 (He et al. 2015, Table 1)."""
    net = _resnet_stem("resnet18")
    for stage, k in enumerate([64, 128, 256, 512]):
        for block in range(2):
            stride = 2 if stage and not block else 1
            name, came, side = f"layer{stage + 1}.{block}", net.channels, net.side
            net.conv(f"{name}.conv1", k, 3, stride=stride)
            net.conv(f"{name}.conv2", k, 3)
            if stride == 2:
                net.at(came, side)
                net.conv(f"{name}.downsample", k, 1, stride=2)
    net.fc("fc", 512, 1000)
    return net


def resnet50() -> Picture:
    """ResNet50 (He et al. 2015, Table 1); the stride is in the 3 x 3 filter."""
    return _bottlenecks("resnet50")


def resnext50() -> Picture:
    """ResNeXt50, 32 x 4d (Xie et al. 2016, Table 1)."""
    return _bottlenecks("resnext50", groups=32, width=4)


def wideresnet50() -> Picture:
    """WideResNet50-2: the 3 x 3 filters twice as wide (Zagoruyko and Komodakis 2016)."""
    return _bottlenecks("wideresnet50", width=128)


def _resnet_stem(model: str) -> Picture:
    net = Picture(model, "vision")
    net.conv("conv1", 64, 7, stride=2)
    net.pool(3, 2, padding=1)
    return net


def _bottlenecks(model: str, *, groups: int = 1, width: int = 64) -> Picture:
    net = _resnet_stem(model)
    for stage, blocks in enumerate([3, 4, 6, 3]):
        k = 64 * 2**stage
        inner = k * width // 64 * groups
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            name, came, side = f"layer{stage + 1}.{block}", net.channels, net.side
            net.conv(f"{name}.conv1", inner, 1)
            net.conv(f"{name}.conv2", inner, 3, stride=stride, groups=groups)
            net.conv(f"{name}.conv3", 4 * k, 1)
            if not block:
                net.at(came, side)
                net.conv(f"{name}.downsample", 4 * k, 1, stride=stride)
    net.fc("fc", 2048, 1000)
    return net


def densenet161() -> Picture:
    """DenseNet161, growth rate 48 (Huang et al. 2016, Table 1); the norm comes before the filter.

    The published batches hold this one's layers.
    """
    net = Picture("densenet161", "vision")
    net.conv("conv0", 96, 7, stride=2)
    net.pool(3, 2, padding=1)
    for stage, blocks in enumerate([6, 12, 36, 24]):
        for block in range(blocks):
            name, came = f"block{stage + 1}.{block}", net.channels
            net.conv(f"{name}.conv1", 4 * 48, 1, extra=2 * came)
            net.conv(f"{name}.conv2", 48, 3, extra=2 * 4 * 48)
            net.channels = came + 48
        if stage < 3:
            net.conv(f"transition{stage + 1}", net.channels // 2, 1, extra=2 * net.channels)
            net.pool(2, 2)
    net.parameters += 2 * net.channels  # the last norm
    net.fc("fc", net.channels, 1000)
    return net


def googlenet() -> Picture:
    """GoogLeNet (Szegedy et al. 2014, Table 1), with batch norm and without the auxiliary outputs.

    torchvision has a 3 x 3 filter where the paper has 5 x 5; so has this.
    """
    net = Picture("googlenet", "vision")
    net.conv("conv1", 64, 7, stride=2)
    net.pool(3, 2, up=True)
    net.conv("conv2", 64, 1)
    net.conv("conv3", 192, 3)
    net.pool(3, 2, up=True)
    for name, widths in {
        "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64), "4a": (192, 96, 208, 16, 48, 64),
        "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64), "4d": (112, 144, 288, 32, 64, 64),
        "4e": (256, 160, 320, 32, 128, 128), "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
    }.items():  # fmt: skip
        _inception(net, f"inception{name}", widths)
        if name == "3b":
            net.pool(3, 2, up=True)
        if name == "4e":
            net.pool(2, 2, up=True)
    net.fc("fc", 1024, 1000)
    return net


def _inception(net: Picture, name: str, widths: tuple[int, ...]) -> None:
    one, before3, three, before5, five, pooled = widths
    came, side = net.channels, net.side
    net.conv(f"{name}.branch1", one, 1)
    net.at(came, side)
    net.conv(f"{name}.branch2.0", before3, 1)
    net.conv(f"{name}.branch2.1", three, 3)
    net.at(came, side)
    net.conv(f"{name}.branch3.0", before5, 1)
    net.conv(f"{name}.branch3.1", five, 3)
    net.at(came, side)
    net.conv(f"{name}.branch4", pooled, 1)
    net.channels = one + three + five + pooled


def mobilenet_v2() -> Picture:
    """MobileNet-V2, width 1 (Sandler et al. 2018, Table 2)."""
    net = Picture("mobilenet-v2", "vision")
    net.conv("conv0", 32, 3, stride=2)
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]
    for stage, (expansion, k, repeats, stride) in enumerate(blocks):
        for block in range(repeats):
            _inverted(net, f"stage{stage + 1}.{block}", k, 3, expansion, stride if not block else 1)
    net.conv("conv18", 1280, 1)
    net.fc("fc", 1280, 1000)
    return net


def mnasnet() -> Picture:
    """MnasNet-B1, depth 1 (Tan et al. 2018, Fig. 7 without squeeze and excitation), as ``mnasnet1_0``."""
    net = Picture("mnasnet", "vision")
    net.conv("conv0", 32, 3, stride=2)
    net.conv("separable.depthwise", 32, 3, groups=32)
    net.conv("separable.pointwise", 16, 1)
    blocks = [
        (3, 24, 3, 2, 3), (3, 40, 3, 2, 5), (6, 80, 3, 2, 5), (6, 96, 2, 1, 3), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    ]  # fmt: skip
    for stage, (expansion, k, repeats, stride, r) in enumerate(blocks):
        for block in range(repeats):
            _inverted(net, f"stage{stage + 1}.{block}", k, r, expansion, stride if not block else 1)
    net.conv("conv_last", 1280, 1)
    net.fc("fc", 1280, 1000)
    return net


def _inverted(net: Picture, name: str, k: int, r: int, expansion: int, stride: int) -> None:
    inner = expansion * net.channels
    if expansion > 1:
        net.conv(f"{name}.expand", inner, 1)
    net.conv(f"{name}.depthwise", inner, r, stride=stride, groups=inner)
    net.conv(f"{name}.project", k, 1)


def squeezenet() -> Picture:
    """SqueezeNet 1.0 (Iandola et al. 2016, Table 1)."""
    net = Picture("squeezenet", "vision")
    net.conv("conv1", 96, 7, stride=2, padding=0, extra=96)
    net.pool(3, 2, up=True)
    for fire, (squeeze, k) in enumerate(
        [(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)], start=2
    ):
        net.conv(f"fire{fire}.squeeze", squeeze, 1, extra=squeeze)
        net.conv(f"fire{fire}.expand1x1", k, 1, extra=k)
        net.channels = squeeze
        net.conv(f"fire{fire}.expand3x3", k, 3, extra=k)
        net.channels = 2 * k
        if fire in (4, 8):
            net.pool(3, 2, up=True)
    net.conv("conv10", 1000, 1, extra=1000)
    return net


def shufflenet_v2() -> Picture:
    """ShuffleNet-V2, width 1 (Ma et al. 2018, Table 5); every block works on half of the channels."""
    net = Picture("shufflenet-v2", "vision")
    net.conv("conv1", 24, 3, stride=2)
    net.pool(3, 2, padding=1)
    for stage, (k, repeats) in enumerate([(116, 4), (232, 8), (464, 4)], start=2):
        for block in range(repeats):
            name, came, side, half = f"stage{stage}.{block}", net.channels, net.side, k // 2
            if not block:
                net.conv(f"{name}.branch1.depthwise", came, 3, stride=2, groups=came)
                net.conv(f"{name}.branch1.pointwise", half, 1)
            net.at(came if not block else half, side)
            net.conv(f"{name}.branch2.expand", half, 1)
            net.conv(f"{name}.branch2.depthwise", half, 3, stride=1 if block else 2, groups=half)
            net.conv(f"{name}.branch2.pointwise", half, 1)
            net.channels = k
    net.conv("conv5", 1024, 1)
    net.fc("fc", 1024, 1000)
    return net


VISION: tuple[Callable[[], Picture], ...] = (
    alexnet, densenet161, googlenet, mnasnet, mobilenet_v2, resnet50, resnext50, resnet18, wideresnet50, squeezenet,
    vgg16, shufflenet_v2,
)  # fmt: skip
