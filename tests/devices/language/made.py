"""Small language models in folders, and requests that run on a device in virtual order without a server."""

from __future__ import annotations

import pytest

from commonwatt.devices.base import RealDeviceClock
from commonwatt.devices.driver import Driver
from commonwatt.devices.language.generation import CachePool, Generation, LanguagePlan
from commonwatt.devices.language.text import GenerationOrder
from commonwatt.devices.models.torch_model import TorchRuntime
from commonwatt.devices.rows import RowPlan
from commonwatt.timeslicing import EnergyLedger, FairScheduler, Task
from commonwatt.timeslicing._policies import Tf

RUNTIME = TorchRuntime("CPU")
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_pretrained(folder, kind="llama", template=TEMPLATE, **more):
    """Write a tiny model of transformers with random weights and a byte-level tokenizer to *folder*."""
    transformers = pytest.importorskip("transformers")
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
    words = ["<s>", "</s>", *alphabet, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({word: place for place, word in enumerate(words)}, merges))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    torch.manual_seed(0)
    sizes = {"vocab_size": len(words), "bos_token_id": 0, "eos_token_id": 1} | more
    if kind == "llama":
        config = transformers.LlamaConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, initializer_range=0.3, **sizes,
        )  # fmt: skip
    elif kind == "gpt2":
        config = transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3, **sizes
        )
    elif kind == "mistral":
        config = transformers.MistralConfig(
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=128, sliding_window=7, initializer_range=0.3, **sizes,
        )  # fmt: skip
    else:
        config = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **sizes)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class NoDevice:
    """What the driver asks a device for."""

    kind, name, enforcement = "cpu", "CPU", "cooperative"

    def set_clock(self, clock_mhz):
        assert clock_mhz is None

    def energy_j(self):
        return None


class Bench:
    """A driver and requests to one model, of tenants called by their place."""

    def __init__(self, model, scheduler=None, tokens=10_000, most=None, tenants=1, max_sequences=16, across=False):
        self.model, self.scheduler = model, scheduler or FairScheduler(Tf(), 10**8)
        self.driver = Driver(self.scheduler, NoDevice(), RealDeviceClock(), EnergyLedger(1.0))
        self.rows = RowPlan(model.profile, None, most or 64)
        shared = CachePool(tokens)
        self.pools = [shared if across else CachePool(tokens) for _ in range(tenants)]
        self.plans = [
            LanguagePlan(pool, self.rows, max_sequences, 10_000, 16, across, lambda work, time_s: 20.0)
            for pool in self.pools
        ]
        for place in range(tenants):
            self.scheduler.add(str(place), 1.0, 20.0)
        self.ended = []

    def ask(self, prompt, max_tokens=8, tenant=0, **more):
        told = []
        order = GenerationOrder(tuple(prompt), max_tokens, **more)
        request = Generation(self.model, self.plans[tenant], order, told.append, self.ended.append)
        task = Task(self.scheduler.tenants[str(tenant)], 0, request, 0, len(prompt))
        assert self.scheduler.submit(task)
        request.told = told
        return request, task

    def run(self):
        while self.driver.step():
            pass


def text(request):
    return "".join(request.told)
