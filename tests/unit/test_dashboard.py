"""The Grafana dashboard asks only for metrics that the installed SGLang or dflash2 publishes."""

import importlib.util
import json
import re
from pathlib import Path

from prometheus_client import REGISTRY

from dflash_sglang.engine.step_clock import StepMetrics

DASHBOARD = Path(__file__).parents[2] / "launch" / "grafana.json"
_SUFFIX = re.compile(r"_bucket$")


def test_every_metric_of_the_dashboard_exists():
    package = importlib.util.find_spec("sglang")
    assert package is not None and package.origin is not None
    source = Path(package.origin).parent / "srt/observability/metrics_collector.py"
    published = set(re.findall(r'"(sglang:\w+)"', source.read_text()))
    asked = {_SUFFIX.sub("", name) for name in asked_for("sglang:")}
    assert len(asked) >= 10
    assert asked - published == set()


def test_every_metric_of_ours_on_the_dashboard_is_counted():
    StepMetrics()
    counted = {f"{family.name}_total" for family in REGISTRY.collect()}
    asked = asked_for("dflash2_")
    assert len(asked) == 2 and asked <= counted


def asked_for(prefix: str) -> set[str]:
    """Metrics of the dashboard whose names begin so."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    return {name for text in expressions for name in re.findall(rf"{prefix}\w+", text)}


def test_every_panel_says_what_it_shows():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        assert panel["description"].endswith((".", ")"))
