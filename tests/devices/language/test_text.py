"""Tokens by their chances, text that comes whole, and stops wherever they are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from commonwatt.devices.language.decoder import ByteCoder
from commonwatt.devices.language.pretrained import load_pretrained
from commonwatt.devices.language.text import GenerationOrder, StopSearch, sample_token
from commonwatt.model.errors import InputError
from tests.devices.language.made import RUNTIME, write_pretrained

pytestmark = pytest.mark.slow

TEXTS = st.text(st.sampled_from("ab é世🙂\n"), max_size=30)


def order(**more):
    return GenerationOrder((0,), 1, **more)


def cut(text, places):
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@given(TEXTS, st.lists(st.text(st.sampled_from("abé\n"), min_size=1, max_size=4), max_size=4), st.lists(st.integers(0)))
def test_stops_are_found_however_the_text_is_cut(text, stops, places):
    search, out = StopSearch(stops), ""
    for part in cut(text, places):
        out += search.push(part)
        if search.has_stop:
            break
    else:
        out += search.end()
    at = min((text.find(stop) for stop in stops if stop in text), default=None)
    if at is None:
        assert (out, search.has_stop) == (text, False)
    else:
        # the first that is whole, in the order of the text, wins; what came before it has been told
        assert search.has_stop
        assert text.startswith(out)
        assert any(text[len(out) :].startswith(stop) for stop in stops)


def test_no_text_is_held_back_without_need():
    search = StopSearch(["abc"])
    assert [search.push(part) for part in ("xa", "b", "d", "ab", "c!")] == ["x", "", "abd", "", ""]
    assert search.has_stop


@pytest.mark.long
def test_draws_follow_the_chances():
    logits, rng = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32)), np.random.default_rng(0)

    def drawn(**more):
        seen = np.bincount([sample_token(logits, order(**more), rng) for _ in range(20_000)], minlength=4)
        return seen / seen.sum()

    assert drawn(temperature=1.0) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.02)
    assert drawn(temperature=1.0, top_p=0.8) == pytest.approx([0.625, 0.375, 0, 0], abs=0.02)
    assert drawn(temperature=1.0, top_p=0.81) == pytest.approx([0.526, 0.316, 0.158, 0], abs=0.02)
    assert drawn(temperature=0.5) == pytest.approx(np.array([0.25, 0.09, 0.0225, 0.0025]) / 0.365, abs=0.02)
    assert sample_token(logits, order(), rng) == 0


def test_logits_that_are_not_numbers():
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="not numbers"):
            sample_token(np.array([0.0, wrong]), order(), np.random.default_rng(0))


def streamed(coder, tokens):
    stream = coder.stream()
    parts = [stream.push(token) for token in tokens]
    return parts, "".join(parts) + stream.end()


@given(TEXTS)
def test_bytes_give_the_text_back(text):
    coder = ByteCoder()
    parts, whole = streamed(coder, coder.encode(text))
    assert whole == text
    assert "\ufffd" not in "".join(parts)


def test_what_is_no_text_is_marked_and_not_held_back():
    parts, whole = streamed(ByteCoder(), [0xFF, 0x61, 0xE4, 0xB8])
    assert parts == ["\ufffd", "a", "", ""]
    assert whole == "\ufffda\ufffd"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    return load_pretrained(write_pretrained(tmp_path_factory.mktemp("models") / "llama"), RUNTIME).coder


@pytest.mark.long
def test_a_folder_without_tokenizer_or_with_a_broken_one_is_told_apart(tmp_path):
    folder = write_pretrained(tmp_path / "llama")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"llama: expected a folder of transformers .*\(.*[^:]\)$"):
        load_pretrained(folder, RUNTIME)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(InputError, match="llama: got 'no tokenizer', expected a folder of transformers"):
        load_pretrained(folder, RUNTIME)


@pytest.mark.slow
@given(text=st.text(st.sampled_from("ab the é世🙂\n"), max_size=30))
def test_a_tokenizer_gives_the_text_back(pretrained, text):
    parts, whole = streamed(pretrained, pretrained.encode(text))
    assert whole == text
    assert "\ufffd" not in "".join(parts)


@pytest.mark.slow
def test_what_is_no_text_is_held_back_for_a_few_tokens_only(pretrained):
    byte = pretrained.tokenizer.convert_tokens_to_ids("ÿ")  # 0xFF, as byte-level tokenizers write it
    parts, _ = streamed(pretrained, [byte] * 20)
    assert any("\ufffd" in part for part in parts)


@pytest.mark.slow
def test_chats_follow_the_models_template(pretrained):
    messages = [{"role": "user", "content": "ab"}]
    assert pretrained.tokenizer.decode(pretrained.chat(messages)) == "<user>ab<assistant>"
