"""An audit's report as one page of HTML that needs nothing beside itself."""

from __future__ import annotations

import jinja2

from dflash_sglang.audit.report import (
    Report,
    describe,
    describe_power,
    identity_rows,
    law_rows,
)

_MOST_DIFFERENCES = 200


def render(report: Report) -> str:
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("dflash_sglang.audit", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    differences = [
        (
            difference.cause.verdict,
            describe(comparison, difference),
            report.prompts[difference.prompt],
        )
        for comparison, difference in report.differences()[:_MOST_DIFFERENCES]
    ]
    return environment.get_template("page.html").render(
        report=report,
        servers=(("baseline", report.baseline), ("candidate", report.candidate)),
        identity=identity_rows(report.comparisons),
        differences=differences,
        law=law_rows(report.law) if report.law else [],
        power=describe_power(report.law) if report.law else "",
    )
