"""What kind of text a prompt asks for, told from its parameters and its last lines.

Drafts hold longest where the text follows from its form: JSON under a schema, tool calls, code; and
least in free prose. The classifier is a handful of counts over the prompt's end. It only says where
a request starts; after a few steps its own acceptance says more (``adaptive.acceptance``).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

DOMAINS = ("json", "code", "math", "chat", "prose", "other")
LOOKED_AT = 600  # characters of a prompt's end
LENGTHS = (256, 1_024, 4_096)  # tokens, where a longer prompt begins
NUM_LENGTHS = len(LENGTHS) + 1
NUM_ORIGINS = len(DOMAINS) * NUM_LENGTHS

_CODE_WORDS = re.compile(
    r"```|\b(def|class|return|import|function|const|struct|void|SELECT|fn|elif|lambda|println?)\b"
    r"|\b(python|javascript|typescript|rust|java|bash|sql|c\+\+|regex|unit test|code)\b|=>|::|;$",
    re.IGNORECASE | re.MULTILINE,
)
_JSON_WORDS = re.compile(r"\bjson\b|\byaml\b|\"\w+\"\s*:|\bschema\b", re.IGNORECASE)
_MATH_WORDS = re.compile(
    r"\d\s*[-+*/=^]\s*\d|\b(calculate|compute|solve|equation|how (many|much)|sum|percent|prove"
    r"|integral|probability|product of)\b|\\frac|\$\$",
    re.IGNORECASE,
)
_PROSE_WORDS = re.compile(
    r"\b(story|poem|essay|novel|fiction|letter|lyrics|song|haiku|imagine|creative|tale|diary"
    r"|describe|narrat\w+|blog post|speech|summari[sz]e)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Domain:
    """A prompt's domain and what spoke for it, for the log."""

    index: int  # in DOMAINS
    reason: str

    @property
    def name(self) -> str:
        return DOMAINS[self.index]


def classify(text: str, *, has_grammar: bool) -> Domain:
    """Tell a prompt's domain.

    Args:
        text: the prompt, or its end.
        has_grammar: the answer is held to a JSON schema, a regex, a grammar or a tool call.
    """
    if has_grammar:
        return _domain("json", "the answer is held to a grammar")
    end = text[-LOOKED_AT:]
    counts = {name: _count(pattern, end) for name, pattern in _PATTERNS}
    name = max(counts, key=lambda kind: counts[kind])  # the first of equals
    if counts[name] == 0:
        is_talk = "?" in end or len(end) < 200
        return _domain("chat", "short or a question") if is_talk else _domain("other", "no sign")
    return _domain(name, f"{counts[name]} signs of {name}")


def origin(domain: Domain, prompt_tokens: int) -> int:
    """What a request's acceptance starts from, below ``NUM_ORIGINS``: its domain and its length.

    A drafter that holds in short contexts need not hold in long ones.
    """
    return domain.index * NUM_LENGTHS + bisect_right(LENGTHS, prompt_tokens)


_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("json", _JSON_WORDS),
    ("code", _CODE_WORDS),
    ("math", _MATH_WORDS),
    ("prose", _PROSE_WORDS),
)


def _count(pattern: re.Pattern[str], text: str) -> int:
    return sum(1 for _ in pattern.finditer(text))


def _domain(name: str, reason: str) -> Domain:
    return Domain(DOMAINS.index(name), reason)
