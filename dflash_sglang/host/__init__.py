"""What a CPU-only machine lacks to run stock SGLang: process bootstrap, operators, attention."""
