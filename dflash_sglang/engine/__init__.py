"""Everything that touches SGLang's internals; no other folder but ``host`` does."""
