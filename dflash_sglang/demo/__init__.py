"""The demo pair: its corpus, tokenizer, target and prompts."""
