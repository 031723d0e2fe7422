"""The demo pair's tokenizer: every text survives it, and no text yields the mask token."""

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_sglang.demo.corpus import conversations
from dflash_sglang.demo.dataset import IGNORED, build_rows, encode
from dflash_sglang.demo.tokenizer import END, MASK, PAD, START, VOCAB_SIZE, train_tokenizer

SPECIALS = (PAD, START, END)


@pytest.fixture(scope="module")
def tokenizer():
    drawn = islice(conversations(0, "training"), 1500)
    return train_tokenizer(m["content"] for sample in drawn for m in sample.messages)


def test_vocabulary_has_the_promised_size(tokenizer):
    assert len(tokenizer) == VOCAB_SIZE
    assert sorted(tokenizer.get_vocab().values()) == list(range(VOCAB_SIZE))


@settings(max_examples=60, deadline=None)
@given(text=st.text())
def test_any_text_survives_encoding(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text or any(s in text for s in SPECIALS)


@settings(max_examples=40, deadline=None)
@given(before=st.text(), after=st.text())
def test_mask_token_is_never_encoded_even_when_spelled_out(tokenizer, before, after):
    mask = tokenizer.convert_tokens_to_ids(MASK)
    assert 0 <= mask < VOCAB_SIZE
    assert mask not in tokenizer.encode(before + MASK + after)


def test_text_too_poor_for_the_vocabulary_is_refused():
    with pytest.raises(ValueError, match="expected text that yields 4096 entries, got"):
        train_tokenizer(["one short line"])


def test_digits_are_tokens_of_their_own(tokenizer):
    assert [tokenizer.decode([i]) for i in tokenizer.encode("4096")] == list("4096")


def test_chat_template_marks_turns_and_opens_the_answer(tokenizer):
    messages = [{"role": "user", "content": "Hello"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == END


def test_training_tokens_equal_the_chat_template(tokenizer):
    for sample in islice(conversations(5, "training"), 50):
        text = tokenizer.apply_chat_template(sample.messages, tokenize=False)
        assert encode(tokenizer, sample)[0] == tokenizer.encode(text)


def test_only_responses_carry_labels(tokenizer):
    for sample in islice(conversations(6, "training"), 50):
        tokens, labels = encode(tokenizer, sample)
        assert all(label in (IGNORED, token) for token, label in zip(tokens, labels, strict=True))
        answers = [m["content"] + END for m in sample.messages if m["role"] == "assistant"]
        assert tokenizer.decode([i for i in labels if i != IGNORED]) == "".join(answers)


def test_rows_hold_whole_conversations(tokenizer):
    rows = build_rows(tokenizer, 20, 256, 0, "training")
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    for row in rows.tokens.tolist():
        assert row[0] == start
        assert row.count(start) == row.count(end)


def test_rows_are_a_function_of_their_arguments(tokenizer):
    first, second = (build_rows(tokenizer, 5, 256, 1, "training") for _ in range(2))
    assert first.tokens.equal(second.tokens) and first.labels.equal(second.labels)
    assert not first.tokens.equal(build_rows(tokenizer, 5, 256, 2, "training").tokens)
