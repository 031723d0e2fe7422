"""The demo pair's tokenizer: byte-level BPE with a chat template."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 4096
PAD, START, END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"

# Words with the space before them, single digits, runs of punctuation, line ends, other space.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train the tokenizer of `VOCAB_SIZE` entries on an iterator of texts.

    The mask token is an entry of the vocabulary that no merge leads to and that is not matched in
    text: encoding never yields it, not even for a text that spells it out. Raises ValueError when
    the texts are too few to fill the vocabulary.
    """
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[PAD, START, END, MASK],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if bpe.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"expected text that yields {VOCAB_SIZE} entries, got {bpe.get_vocab_size()}"
        )
    described = json.loads(bpe.to_str())
    described["added_tokens"] = [t for t in described["added_tokens"] if t["content"] != MASK]
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(described)),
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
