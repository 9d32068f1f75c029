"""The page of a plan in stages: one HTML file without scripts, with the schedule as a picture and each stage's plan."""

from __future__ import annotations

import html
from collections.abc import Iterator

from autoshard.ir.graph import walk
from autoshard.pipeline.planned.data import PipelineData
from autoshard.pipeline.planned.price import PipelinePrice
from autoshard.pipeline.planned.report import report
from autoshard.pipeline.schedules.picture import schedule_svg
from costmodel import format_bytes, format_seconds

_STYLE = """body { font: 15px/1.5 system-ui, sans-serif; margin: 24px auto; max-width: 1200px; padding: 0 20px }
pre { overflow-x: auto; background: #8881; padding: 10px 12px; border-radius: 8px; font-size: 12.5px }
.wide { overflow-x: auto } table { border-collapse: collapse } td, th { padding: 4px 14px 4px 0; text-align: left }
:root { color-scheme: light dark }"""


def pipeline_page(planned: PipelineData) -> str:
    """The page: what a step takes, who does what when, what each group holds, and how each stage is split."""
    return "\n".join(_parts(planned, PipelinePrice(planned)))


def _parts(planned: PipelineData, price: PipelinePrice) -> Iterator[str]:
    name = html.escape(planned.graph.name)
    yield f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{name} in stages</title>'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    yield f"<style>{_STYLE}</style></head><body><h1>{name} in {planned.stages} stages</h1>"
    most = max(one.nbytes for one in price.memory)
    yield (
        f"<p>A step takes <b>{format_seconds(price.seconds)}</b> on {html.escape(planned.described_devices)}: the "
        f"groups idle for {100 * price.timeline.bubble_share:.1f} % of the schedule, and the fullest holds "
        f"<b>{format_bytes(most)}</b> on a device. Times are predicted.</p>"
    )
    yield f'<h2>Schedule</h2><div class="wide">{schedule_svg(price.timeline)}</div>'
    yield f"<h2>Stages and groups</h2><pre>{html.escape(report(planned))}</pre>"
    yield "<h2>How each stage is split</h2>"
    for stage, found in enumerate(planned.whole.pipeline.stages):
        yield f"<details><summary>stage {stage}, group {planned.schedule.ranks_of_stages[stage]}</summary>"
        yield from _stage(planned, stage, [value.name for value in found.parameters])
        yield "</details>"
    yield "</body></html>"


def _stage(planned: PipelineData, stage: int, parameters: list[str]) -> Iterator[str]:
    """A stage's parameters, and its operators with their strategies."""
    yield f"<p>parameters: {html.escape(', '.join(parameters) or 'none')}</p>"
    yield "<table><tr><th>operator</th><th>op</th><th>strategy</th><th>result</th></tr>"
    plan = planned.plans[stage]
    for node in walk(plan.graph.nodes):
        strategy = plan.strategy(node)
        cells = (node.label, node.op.name, str(strategy), ", ".join(f"[{one}]" for one in strategy.result_layouts))
        yield f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"
    yield "</table>"
