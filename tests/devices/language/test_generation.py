"""Answers do not depend on who else runs, nor on how prompts are cut: oracles are one by one, and transformers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from commonwatt.devices.language.base import SequenceCache, SequencePart  # noqa: E402
from commonwatt.devices.language.decoder import load_decoder, write_decoder  # noqa: E402
from commonwatt.devices.language.generation import divide_step  # noqa: E402
from commonwatt.devices.language.pretrained import load_pretrained  # noqa: E402
from commonwatt.model.errors import DeviceError, InputError  # noqa: E402
from commonwatt.timeslicing import FifoScheduler, VtcScheduler  # noqa: E402
from tests.devices.language.made import RUNTIME, Bench, write_pretrained  # noqa: E402

pytestmark = pytest.mark.slow

LENGTHS = (3, 40, 17, 1, 90)


def prompts(vocabulary, first=2):
    rng = np.random.default_rng(0)
    return [rng.integers(first, vocabulary, length).tolist() for length in LENGTHS]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return load_decoder(write_decoder(tmp_path_factory.mktemp("models") / "tiny.npz"), RUNTIME)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def folder(kind):
        if kind not in made:
            made[kind] = write_pretrained(tmp_path_factory.mktemp("models") / kind, kind)
        return made[kind]

    return folder


def one_by_one(model, asked, tokens):
    answers = []
    for prompt in asked:
        bench = Bench(model)
        request, _ = bench.ask(prompt, tokens)
        bench.run()
        answers.append(request.answer.tokens)
    return answers


def joining(model, asked, tokens, most, **more):
    """Each joins two steps after the one before."""
    bench, requests = Bench(model, most=most, **more), []
    for place, prompt in enumerate(asked):
        requests.append(bench.ask(prompt, tokens, tenant=place % len(bench.pools))[0])
        bench.driver.step(), bench.driver.step()
    bench.run()
    assert all(pool.used == 0 for pool in bench.pools)
    assert len(bench.ended) == len(asked)
    return [request.answer.tokens for request in requests]


@pytest.mark.parametrize("most", [1, 5, 64])
def test_answers_of_the_decoder_are_the_same_in_any_company(decoder, most):
    asked = prompts(256)
    assert joining(decoder, asked, 12, most) == one_by_one(decoder, asked, 12)


def test_a_cache_gives_what_the_whole_text_gives(decoder):
    """Without a cache: the whole text anew for each token."""
    (prompt,) = one_by_one(decoder, [[1, 2, 3]], 20)
    text = [1, 2, 3]
    for token in prompt:
        logits = decoder.step([SequencePart(SequenceCache(len(text)), text)])
        assert int(logits[0].argmax()) == token
        text.append(token)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["llama", "gpt2", "mistral"])
def test_answers_are_those_of_transformers_own_generate(folders, kind):
    """Mistral attends to a window of 7 tokens here."""
    import transformers

    reference = transformers.AutoModelForCausalLM.from_pretrained(folders(kind))
    model, asked = load_pretrained(folders(kind), RUNTIME), prompts(200)
    expected = []
    for prompt in asked:
        out = reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        expected.append(out[0, len(prompt) :].tolist())
    for most in (1, 5, 64):
        assert joining(model, asked, 12, most) == expected
    assert model.context_tokens == 128
    assert model.cache_bytes_per_token == 2 * 2 * 4 * {"llama": 16, "gpt2": 32, "mistral": 16}[kind]


@pytest.mark.long
def test_a_model_whose_attention_is_not_plain_is_refused(folders):
    with pytest.raises(InputError, match="bloom") as refused:
        load_pretrained(folders("bloom"), RUNTIME)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("make", [FifoScheduler, VtcScheduler])
def test_tenants_share_a_batch_where_there_are_no_turns(decoder, make):
    asked = prompts(256)
    answers = joining(decoder, asked, 12, 64, scheduler=make(), tenants=2, across=True)
    assert answers == one_by_one(decoder, asked, 12)


def test_time_and_energy_are_charged_by_token(decoder):
    bench = Bench(decoder, FifoScheduler(), tenants=2, across=True)
    a, _ = bench.ask(range(30), 10)
    b, _ = bench.ask(range(10), 10, tenant=1)
    bench.run()
    tenants = bench.scheduler.tenants.values()
    assert [tenant.time_ns for tenant in tenants] == [a.time_ns, b.time_ns]
    assert sum(tenant.time_ns for tenant in tenants) == bench.driver.device_ns
    assert [tenant.energy_j for tenant in tenants] == pytest.approx([20e-9 * a.time_ns, 20e-9 * b.time_ns])


def test_room_is_kept_from_the_first_step_to_the_last(decoder):
    bench = Bench(decoder, tokens=50)
    first, _ = bench.ask([1] * 20, 10)
    second, _ = bench.ask([2] * 20, 10)
    bench.driver.step()
    assert bench.pools[0].used == 30
    assert second.batch is None
    while not first.over:
        bench.driver.step()
    bench.run()
    assert (second.over, bench.pools[0].used) == (True, 0)


def test_more_than_may_run_together_wait(decoder):
    bench = Bench(decoder, max_sequences=2)
    requests = [bench.ask([place], 6)[0] for place in range(5)]
    while bench.driver.step():
        assert sum(request.batch is not None for request in requests) <= 2
    assert all(request.over for request in requests)


def test_who_is_cancelled_leaves_at_the_next_step_and_the_others_go_on(decoder):
    bench = Bench(decoder)
    going, _ = bench.ask([1, 2], 20)
    gone, task = bench.ask([3, 4], 20)
    for _ in range(3):
        bench.driver.step()
    assert not bench.scheduler.cancel(task)
    made = len(gone.answer.tokens)
    bench.run()
    assert len(gone.answer.tokens) == made
    assert (bench.ended[0], going.answer.finish) == (task, "length")
    assert bench.pools[0].used == 0


def test_all_of_a_batch_may_be_cancelled(decoder):
    bench = Bench(decoder)
    _, task = bench.ask([1, 2], 20)
    bench.driver.step()
    bench.scheduler.cancel(task)
    later, _ = bench.ask([1, 2], 3)
    bench.run()
    assert (bench.ended[0], later.over, bench.pools[0].used) == (task, True, 0)


@pytest.mark.parametrize("error", [DeviceError("gone"), InputError("something else")])
def test_a_step_that_fails_fails_those_in_it(decoder, monkeypatch, error):
    bench = Bench(decoder)
    requests = [bench.ask([place], 6)[0] for place in range(3)]
    bench.driver.step()

    def fail(_):
        raise error

    monkeypatch.setattr(decoder, "step", fail)
    bench.driver.step()
    assert [request.error for request in requests] == [error] * 3
    assert len(bench.ended) == 3
    assert bench.pools[0].used == 0
    assert (bench.driver.gone is error) == isinstance(error, DeviceError)
    assert not bench.scheduler.tenants["0"].has_work()


def test_logits_that_are_no_numbers_fail_one_request(decoder, monkeypatch):
    bench = Bench(decoder)
    bad, good = bench.ask([1], 6)[0], bench.ask([2], 6)[0]
    step = decoder.step

    def half(pieces):
        logits = step(pieces).copy()
        logits[[list(piece.tokens) == [1] for piece in pieces]] = np.nan
        return logits

    monkeypatch.setattr(decoder, "step", half)
    bench.run()
    assert "not numbers" in str(bad.error)
    assert good.answer.finish == "length"


def test_steps_are_as_short_as_the_plan_says(decoder, monkeypatch):
    bench, seen = Bench(decoder, most=7), []
    step = decoder.step

    def watched(pieces):
        seen.append(sum(len(piece.tokens) for piece in pieces))
        return step(pieces)

    monkeypatch.setattr(decoder, "step", watched)
    for length in (40, 3, 25):
        bench.ask(range(length), 8)
    bench.run()
    assert max(seen) == 7
    assert sum(seen) == 40 + 3 + 25 + 3 * 7  # the last token of an answer is not computed any further


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 40))
def test_a_step_is_full_and_nobody_waits_for_long(wanted, most):
    given_ = divide_step(wanted, most)
    assert sum(given_) == min(most, sum(wanted))
    assert all(0 <= got <= want for got, want in zip(given_, wanted, strict=True))
    assert all(given_[:most])
    order, waited = list(range(len(wanted))), [0] * len(wanted)
    for _ in range(30):
        got = divide_step([wanted[place] for place in order], most)
        for place, tokens in zip(order, got, strict=True):
            waited[place] = 0 if tokens else waited[place] + 1
        assert max(waited) < -(-len(wanted) // most)
        order = [p for p, t in zip(order, got, strict=True) if not t] + [
            p for p, t in zip(order, got, strict=True) if t
        ]


def test_a_step_by_hand():
    assert divide_step([1, 30, 1, 5], 10) == [1, 7, 1, 1]
    assert divide_step([1, 3, 1, 5], 10) == [1, 3, 1, 5]
    assert divide_step([1, 30, 1, 5], 2) == [1, 1, 0, 0]
