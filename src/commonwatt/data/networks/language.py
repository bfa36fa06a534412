"""The language networks of G#'s Table 3: default configurations of transformers 4, without a head.

The published batches hold hidden sizes that only these defaults have (ALBERT's 4096/16384, XLM's 2048/8192). Words are
looked up on the host (2.1), so embedding tables are parameters but no layers. Attention is one layer in as many groups
as there are heads for the scores and one for the context, beside the linear maps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from commonwatt.data.networks.drawing import Text
from commonwatt.model.errors import InputError

__all__ = ["LANGUAGE", "TOKENS"]

TOKENS = 20
"""Tokens of nearly every language layer of the published batches."""


def _block(
    net: Text, name: str, width: int, heads: int, inner: int, *, size: int | None = None, bias: bool = True,
    cross: bool = False, norms: int | None = None, fused: bool = False, trained: bool = True,
) -> None:  # fmt: skip
    """Self-attention, attention to an encoder if *cross*, and two linear maps, with *norms* parameters of norms."""
    _attention(net, f"{name}.self", width, heads, size or width // heads, bias=bias, fused=fused, trained=trained)
    if cross:
        _attention(net, f"{name}.cross", width, heads, size or width // heads, bias=bias, fused=False, trained=trained)
    net.linear(f"{name}.ffn1", width, inner, bias=bias, trained=trained)
    net.linear(f"{name}.ffn2", inner, width, bias=bias, trained=trained)
    if trained:
        net.parameters += (6 if cross else 4) * width if norms is None else norms


def _attention(
    net: Text, name: str, width: int, heads: int, size: int, *, bias: bool, fused: bool, trained: bool
) -> None:
    if fused:
        net.linear(f"{name}.query_key_value", width, 3 * heads * size, bias=bias, trained=trained)
    else:
        for part in ("query", "key", "value"):
            net.linear(f"{name}.{part}", width, heads * size, bias=bias, trained=trained)
    net.attention(name, heads, size)
    net.linear(f"{name}.output", heads * size, width, bias=bias, trained=trained)


def _bert(
    model: str, tokens: int, *, words: int = 30522, layers: int = 12, pooler: bool = True, types: int = 2
) -> Text:
    """BERT base: hidden size 768, 12 heads, inner size 3072."""
    net = Text(model, "language", tokens=tokens, parameters=(words + 512 + types + 2) * 768)
    for layer in range(layers):
        _block(net, f"layer{layer}", 768, 12, 3072)
    if pooler:
        net.fc("pooler", 768, 768)
    return net


def albert(tokens: int) -> Text:
    """ALBERT, the xxlarge size that is the default; its 12 layers share one set of weights."""
    net = Text("albert", "language", tokens=tokens, parameters=(30000 + 512 + 2 + 2) * 128)
    net.linear("embedding", 128, 4096)
    for layer in range(12):
        _block(net, f"layer{layer}", 4096, 64, 16384, trained=layer == 0)
    net.fc("pooler", 4096, 4096)
    return net


def _encoder_decoder(model: str, tokens: int, words: int, positions: int, norms: int) -> Text:
    """BART large and Marian: 12 + 12 layers, hidden size 1024, 16 heads, inner size 4096."""
    net = Text(model, "language", tokens=tokens, parameters=words * 1024 + positions * 2 * 1024 + norms * 1024)
    for layer in range(12):
        _block(net, f"encoder{layer}", 1024, 16, 4096)
    for layer in range(12):
        _block(net, f"decoder{layer}", 1024, 16, 4096, cross=True)
    return net


def ctrl(tokens: int) -> Text:
    """CTRL: 48 layers, hidden size 1280, 16 heads, inner size 8192."""
    net = Text("ctrl", "language", tokens=tokens, parameters=246534 * 1280 + 2 * 1280)
    for layer in range(48):
        _block(net, f"layer{layer}", 1280, 16, 8192)
    return net


def electra(tokens: int) -> Text:
    """ELECTRA small: embeddings of 128, 12 layers, hidden size 256, 4 heads, inner size 1024."""
    net = Text("electra", "language", tokens=tokens, parameters=(30522 + 512 + 2 + 2) * 128)
    net.linear("embedding", 128, 256)
    for layer in range(12):
        _block(net, f"layer{layer}", 256, 4, 1024)
    return net


def _xlm(model: str, tokens: int) -> Text:
    """XLM and FlauBERT: 12 layers, hidden size 2048, 16 heads, inner size 8192."""
    net = Text(model, "language", tokens=tokens, parameters=(30145 + 512 + 2) * 2048)
    for layer in range(12):
        _block(net, f"layer{layer}", 2048, 16, 8192)
    return net


def _gpt(model: str, tokens: int, words: int, positions: int, last_norm: int) -> Text:
    """GPT and GPT-2 small: 12 layers, hidden size 768, 12 heads; one map makes queries, keys and values."""
    net = Text(model, "language", tokens=tokens, parameters=(words + positions) * 768 + last_norm)
    for layer in range(12):
        _block(net, f"layer{layer}", 768, 12, 3072, fused=True)
    return net


def longformer(tokens: int) -> Text:
    """Longformer base, window 512: the text is filled up to windows, no token attends globally.

    Every head multiplies overlapping pieces of 512 queries and keys, then 256 rows of attention by 768 values. The
    maps of global attention are parameters that no layer uses.
    """
    padded = -(-tokens // 512) * 512
    net = Text("longformer", "language", tokens=padded, parameters=(30522 + 512 + 2 + 2) * 768)
    pieces = padded // 256
    for layer in range(12):
        name = f"layer{layer}"
        for part in ("query", "key", "value"):
            net.linear(f"{name}.self.{part}", 768, 768)
        net.product(f"{name}.self.scores", 12 * (pieces - 1), 512, 64, 512)
        net.product(f"{name}.self.context", 12 * pieces, 256, 768, 64)
        net.linear(f"{name}.self.output", 768, 768)
        net.linear(f"{name}.ffn1", 768, 3072)
        net.linear(f"{name}.ffn2", 3072, 768)
        net.parameters += 4 * 768 + 3 * (768 + 1) * 768
    net.fc("pooler", 768, 768)
    return net


def mobilebert(tokens: int) -> Text:
    """MobileBERT: 24 layers of 512 with a bottleneck of 128, 4 heads and 4 feed-forward networks in each."""
    net = Text("mobilebert", "language", tokens=tokens, parameters=30522 * 128 + (512 + 2 + 2) * 512)
    net.linear("embedding", 3 * 128, 512)
    for layer in range(24):
        name = f"layer{layer}"
        net.linear(f"{name}.bottleneck.input", 512, 128)
        net.linear(f"{name}.bottleneck.attention", 512, 128)
        net.linear(f"{name}.self.query", 128, 128)
        net.linear(f"{name}.self.key", 128, 128)
        net.linear(f"{name}.self.value", 512, 128)
        net.attention(f"{name}.self", 4, 32)
        net.linear(f"{name}.self.output", 128, 128)
        for ffn in range(4):
            net.linear(f"{name}.ffn{ffn}.1", 128, 512)
            net.linear(f"{name}.ffn{ffn}.2", 512, 128)
        net.linear(f"{name}.bottleneck.output", 128, 512)
        net.parameters += 2 * (2 * 128 + 128 + 4 * 128 + 512)
    net.fc("pooler", 512, 512)
    return net


def reformer(tokens: int) -> Text:
    """Reformer: 6 layers of 256 with 12 heads of 64, local attention and attention by hashes in turn.

    Up to a chunk of 64 tokens both are plain attention, and nothing is hashed.
    """
    if tokens > 64:
        raise InputError("64 or fewer for reformer, which hashes longer texts", field="tokens", value=tokens)
    net = Text("reformer", "language", tokens=tokens, parameters=320 * 256 + 64 * 64 + 64 * 192)
    for layer in range(6):
        name = f"layer{layer}"
        for part in ("query", "key", "value") if layer % 2 == 0 else ("query_key", "value"):
            net.linear(f"{name}.self.{part}", 256, 768, bias=False)
        net.attention(f"{name}.self", 12, 64)
        net.linear(f"{name}.self.output", 768, 256, bias=False)
        net.linear(f"{name}.ffn1", 256, 512)
        net.linear(f"{name}.ffn2", 512, 256)
        net.parameters += 4 * 256
    net.parameters += 2 * 512  # the last norm
    return net


def retribert(tokens: int) -> Text:
    """RetriBERT: 8 layers of BERT and a projection to 128, of a question; documents have a projection of their own."""
    net = _bert("retribert", tokens, layers=8)
    net.fc("project_query", 768, 128, bias=False)
    net.parameters += 768 * 128
    return net


def t5(tokens: int) -> Text:
    """T5 small: 6 + 6 layers, hidden size 512, 8 heads of 64, inner size 2048, no biases."""
    net = Text("t5", "language", tokens=tokens, parameters=32128 * 512 + 2 * 32 * 8 + 2 * 512)
    for layer in range(6):
        _block(net, f"encoder{layer}", 512, 8, 2048, bias=False, norms=2 * 512)
    for layer in range(6):
        _block(net, f"decoder{layer}", 512, 8, 2048, bias=False, norms=3 * 512, cross=True)
    return net


def transformer_xl(tokens: int) -> Text:
    """Transformer-XL of WikiText-103: 18 layers of 1024, 16 heads of 64; relative positions, an empty memory."""
    words = 20000 * 1024 + 20000 * 256 + 160000 * 64 + 67735 * 16  # by frequency, four tables
    net = Text("transformer-xl", "language", tokens=tokens, parameters=words + (1024 + 256 + 64 + 16) * 1024)
    for layer in range(18):
        name = f"layer{layer}"
        net.linear(f"{name}.self.query_key_value", 1024, 3072, bias=False)
        net.linear(f"{name}.self.position", 1024, 1024, bias=False)
        net.product(f"{name}.self.scores", 16, tokens, 64, tokens)
        net.product(f"{name}.self.position_scores", 16, tokens, 64, tokens)
        net.product(f"{name}.self.context", 16, tokens, tokens, 64)
        net.linear(f"{name}.self.output", 1024, 1024, bias=False)
        net.linear(f"{name}.ffn1", 1024, 4096)
        net.linear(f"{name}.ffn2", 4096, 1024)
        net.parameters += 4 * 1024 + 2 * 16 * 64
    return net


def xlnet(tokens: int) -> Text:
    """XLNet large: 24 layers of 1024, 16 heads of 64; relative positions from -n to n, an empty memory."""
    net = Text("xlnet", "language", tokens=tokens, parameters=32000 * 1024 + 1024)
    for layer in range(24):
        name = f"layer{layer}"
        for part in ("query", "key", "value"):
            net.linear(f"{name}.self.{part}", 1024, 1024, bias=False)
        net.linear(f"{name}.self.position", 1024, 1024, rows=2 * tokens, bias=False)
        net.product(f"{name}.self.scores", 16, tokens, 64, tokens)
        net.product(f"{name}.self.position_scores", 16, tokens, 64, 2 * tokens)
        net.product(f"{name}.self.context", 16, tokens, tokens, 64)
        net.linear(f"{name}.self.output", 1024, 1024, bias=False)
        net.linear(f"{name}.ffn1", 1024, 4096)
        net.linear(f"{name}.ffn2", 4096, 1024)
        net.parameters += 4 * 1024 + 3 * 1024 + 2 * 1024  # norms, biases of attention, segments
    return net


LANGUAGE: tuple[Callable[[int], Text], ...] = (
    albert,
    partial(_encoder_decoder, "bart", words=50265, positions=1024 + 2, norms=4),
    partial(_bert, "bert"),
    partial(_bert, "camembert"),
    ctrl,
    partial(_bert, "distilbert", layers=6, pooler=False, types=0),
    electra,
    partial(_xlm, "flaubert"),
    partial(_gpt, "gpt2", words=50257, positions=1024, last_norm=2 * 768),
    partial(_gpt, "gpt", words=40478, positions=512, last_norm=0),
    longformer,
    partial(_encoder_decoder, "marianmt", words=58101, positions=1024, norms=0),
    mobilebert,
    reformer,
    retribert,
    partial(_bert, "roberta", words=50265),
    t5,
    transformer_xl,
    partial(_xlm, "xlm"),
    partial(_bert, "xlm-roberta"),
    xlnet,
)
