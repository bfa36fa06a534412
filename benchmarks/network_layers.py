"""The layer tables against the libraries the networks are from: ``python -m benchmarks.network_layers [NETWORK ...]``.

Vision: every layer in order against torchvision, followed by our own import. Language: parameters and
multiply-accumulates of the bare models of transformers with default configurations, run once on 20 tokens under
PyTorch's flop counter. Neither library is a dependency; what is not installed is said and left out. Transformer-XL is
not here: its model of transformers 4.57 does not run under the counter.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from commonwatt.data.model_layers.from_torch import layers_of
from commonwatt.data.networks import network, network_layers, networks
from commonwatt.mapping.costs import Layer

VISION = {
    "mnasnet": "mnasnet1_0", "mobilenet-v2": "mobilenet_v2", "resnext50": "resnext50_32x4d",
    "wideresnet50": "wide_resnet50_2", "squeezenet": "squeezenet1_0", "shufflenet-v2": "shufflenet_v2_x1_0",
}  # fmt: skip
LANGUAGE = {
    "albert": "Albert", "bart": "Bart", "bert": "Bert", "camembert": "Camembert", "ctrl": "CTRL",
    "distilbert": "DistilBert", "electra": "Electra", "flaubert": "Flaubert", "gpt2": "GPT2", "gpt": "OpenAIGPT",
    "longformer": "Longformer", "marianmt": "Marian", "mobilebert": "MobileBert", "reformer": "Reformer",
    "roberta": "Roberta", "t5": "T5", "xlm": "XLM", "xlm-roberta": "XLMRoberta", "xlnet": "XLNet",
}  # fmt: skip
TOKENS = 20


def shape(layer: Layer) -> tuple[object, ...]:
    return (layer.kind, layer.k, layer.c, layer.y, layer.x, layer.r, layer.s, layer.stride, layer.padding, layer.groups)


def vision(name: str) -> str:
    more: dict[str, Any] = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    with torch.device("meta"):
        module = getattr(import_module("torchvision.models"), VISION.get(name, name))(weights=None, **more).eval()
        theirs = layers_of(module, [torch.empty(1, 3, 224, 224)])
    ours = network_layers(name)
    same = [shape(layer) for layer in theirs] == [shape(layer) for layer in ours]
    parameters = sum(part.numel() for part in module.parameters())
    return f"{len(ours)} layers, equal in order: {same}; parameters {parameters - network(name).parameters:+d}"


def language(name: str) -> str:
    library = import_module("transformers")
    config = getattr(library, f"{LANGUAGE[name]}Config")()
    config._attn_implementation = "eager"  # noqa: SLF001
    with import_module("transformers.modeling_utils").no_init_weights():
        module = getattr(library, f"{LANGUAGE[name]}Model")(config).eval()
    given = {"input_ids": torch.full((1, TOKENS), 5)}
    if config.is_encoder_decoder:
        given["decoder_input_ids"] = given["input_ids"]
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(**given)
    macs, parameters = counter.get_total_flops() // 2, sum(part.numel() for part in module.parameters())
    found = network(name)
    return f"multiply-accumulates {macs - found.macs:+d}, parameters {parameters - found.parameters:+d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[found.model for found in networks()])
    for name in parser.parse_args().networks:
        task = network(name).task
        library = {"vision": "torchvision", "language": "transformers"}.get(task)
        if library is None or (task == "language" and name not in LANGUAGE):
            print(f"{name}: no library has it")
        elif find_spec(library) is None:
            print(f"{name}: {library} is not installed")
        else:
            print(f"{name}: theirs against ours: {vision(name) if task == 'vision' else language(name)}", flush=True)


if __name__ == "__main__":
    main()
