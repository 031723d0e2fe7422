"""Names of SGLang's that moved are found before anything registers."""

import logging

from dflash_sglang import plugin
from dflash_sglang.engine import compat
from dflash_sglang.engine.compat import Reliance, describe_mismatches, find_mismatches


def test_the_installed_sglang_has_every_name():
    assert find_mismatches() == []


def test_a_missing_name_and_a_missing_parameter_are_told_apart():
    found = find_mismatches(
        (
            Reliance("json.loads"),
            Reliance("json.no_such_function"),
            Reliance("json.dumps", ("obj", "no_such_parameter")),
        )
    )
    assert [mismatch.name for mismatch in found] == ["json.no_such_function", "json.dumps"]
    assert "no_such_parameter" in found[1].reason


def test_a_mismatch_is_one_sentence_with_both_versions():
    sentence = describe_mismatches(find_mismatches((Reliance("json.gone"),)))
    assert "json.gone" in sentence
    assert compat.TESTED_VERSION in sentence
    assert compat.sglang_version() in sentence


def test_nothing_is_registered_on_a_mismatch(monkeypatch, caplog):
    from sglang.srt.speculative import spec_registry

    registered = dict(spec_registry._REGISTRY)
    monkeypatch.setattr(compat, "find_mismatches", lambda: [compat.Mismatch("json.gone", "gone")])
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert registered == spec_registry._REGISTRY
    assert "json.gone" in caplog.text
