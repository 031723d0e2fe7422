"""A tokenizer of single characters for the tiny checkpoints: enough for JSON and tool calls."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.engine.checkpoints import MASK_TOKEN, VOCAB

BEGIN, END, MASK = "<|begin|>", "<|end|>", "<|mask|>"
CHARACTERS = 'abcdefghijklmnopqrstuvwxyz0123456789{}[]":,._-<>/ \n()+=?!*TFN'
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if tools %}tools: {{ tools | length }}\n{% endif %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Put the tokenizer beside a checkpoint of :func:`tests.engine.checkpoints.save_target`."""
    tokenizer = character_tokenizer()
    tokenizer.save_pretrained(folder)
    return tokenizer


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token a character; text in capitals or with other signs cannot be written."""
    entries = [BEGIN, END, *(_byte_level(character) for character in CHARACTERS), MASK]
    assert len(entries) == len(set(entries)) == VOCAB
    assert entries.index(MASK) == MASK_TOKEN
    vocab = {entry: index for index, entry in enumerate(entries)}
    bpe = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BEGIN,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _byte_level(character: str) -> str:
    """The sign by which byte-level tokenizers write a character."""
    ((written, _),) = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(character)
    return written
