"""The Grafana dashboard asks only for metrics that the installed SGLang publishes."""

import importlib.util
import json
import re
from pathlib import Path

DASHBOARD = Path(__file__).parents[2] / "launch" / "grafana.json"
_SUFFIX = re.compile(r"_bucket$")


def test_every_metric_of_the_dashboard_exists():
    package = importlib.util.find_spec("sglang")
    assert package is not None and package.origin is not None
    source = Path(package.origin).parent / "srt/observability/metrics_collector.py"
    published = set(re.findall(r'"(sglang:\w+)"', source.read_text()))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = {
        _SUFFIX.sub("", name)
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"sglang:\w+", target["expr"])
    }
    assert len(panels) == 8 and len(asked) >= 10
    assert asked - published == set()


def test_every_panel_says_what_it_shows():
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        assert panel["description"].endswith((".", ")"))
