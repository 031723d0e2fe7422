"""A tokenizer of single characters for the tiny targets, so that they can chat."""

from __future__ import annotations

import string
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.engine.checkpoints import MASK_TOKEN, VOCAB

_SPECIAL = {0: "<s>", 1: "</s>", VOCAB - 2: "<unk>", MASK_TOKEN: "<mask>"}
_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }} {% endfor %}"


def save_tokenizer(folder: Path) -> None:
    """Write it beside a target; ids 0, 1 and the last two are special, the others characters."""
    characters = iter(string.ascii_letters + " " + string.digits)
    names = {_SPECIAL.get(token) or next(characters): token for token in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        chat_template=_TEMPLATE,
    ).save_pretrained(folder)
