"""Builds the report on one or more stores as a document: first questions and answers, then evidence, then records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdb.base import data
from hvdb.base.errors import HvdbError
from hvdb.judge import efficiency
from hvdb.judge.bootstrap import Estimate
from hvdb.judge.efficiency import Cell, Selection
from hvdb.judge.rank_work import Examined
from hvdb.judge.systems import System
from hvdb.read import published
from hvdb.read.predictions import Prediction
from hvdb.read.runs import Component, Run
from hvdb.show import advice, predicted, rank_report, report_facts, tables
from hvdb.show.advice import Evidence, share
from hvdb.show.document import Block, Document, Figure, Paragraph, Section, Table, first
from hvdb.show.report_facts import bullets, name, world

MAX_SUBJECTS = 12  # maximum configurations with questions and answers; the tables have all configurations
MAX_PANELS = 6  # maximum panels of a figure
SHOWN_RANKS = 8
# Maximum heat maps of a report, and columns of one. A figure of 512 ranks with 100 columns takes 0.4 MB, most of it for
# the heat map.
MAX_HEAT_MAPS, HEAT_MAP_COLUMNS = 3, 100
# The cost of the reductions of two runs can be compared only if these columns are equal.
REDUCTION_COLUMNS = ("device", "allreduce_type", "schedule", "comm", "data_plane", "world_size", "nodes", "traced")


@dataclass(frozen=True)
class Measured:
    """One system and its efficiency table. subjects: for each configuration, the row with the most ranks."""

    system: System
    cells: Sequence[Cell]

    @property
    def subjects(self) -> list[Cell]:
        subjects: dict[tuple, Cell] = {}
        for cell in self.cells:
            key = tuple(cell.configuration.values())
            known = subjects.get(key)
            if known is None or (cell.kind == "full", cell.ranks) >= (known.kind == "full", known.ranks):
                subjects[key] = cell
        return list(subjects.values())

    def newest(self, cell: Cell) -> Run:
        """Returns the newest of the cell's runs whose phase is `cell.kind`."""
        ids = set(cell.run_ids)
        return [run for run in self.system.runs if run.uuid in ids and run.phase == cell.kind][-1]

    @property
    def reducing(self) -> list[tuple[Cell, Run]]:
        """Returns those subjects that ran on several ranks, at most MAX_SUBJECTS, each with its newest run."""
        several = [cell for cell in self.subjects if cell.kind == "full" and cell.ranks > 1]
        return [(cell, self.newest(cell)) for cell in several[:MAX_SUBJECTS]]


Ranks = Mapping[str, Examined | HvdbError]
"""UUID of a run -> the comparison of its ranks, or the error why there is none."""


def _evidence(measured: Measured, ranks: Ranks) -> list[Evidence]:
    evidence = []
    for cell in measured.subjects:
        if cell.kind != "full":
            continue
        run = measured.newest(cell)
        kind = [run.columns[column] for column in REDUCTION_COLUMNS]
        peers = [
            other
            for other in measured.system.runs
            if other.phase == "full" and [other.columns[column] for column in REDUCTION_COLUMNS] == kind
        ]
        examined = ranks.get(run.uuid)
        evidence.append(Evidence(run, cell, peers, examined if isinstance(examined, Examined) else None))
    return evidence


def _largest_loss(run: Run) -> str:
    lost = {
        part: figure
        for part, figure in run.decomposition.items()
        if part != "efficiency" and figure.fraction > 0 and not figure.unresolved
    }
    if not lost:
        return f"No part of the loss is resolved in run {run.short_id}."
    part = max(lost, key=lambda name: lost[name].fraction)
    where = f"The largest part of the loss in run {run.short_id}"
    return f"{where} is {tables.COMPONENTS.get(part, part)}: {share(lost[part])} of the step."


def _bound(cell: Cell, run: Run) -> str:
    if cell.ring_bound is not None and cell.ranks > 1:
        return (
            f"Bound: {tables.percent(cell.ring_bound)} %, if reductions hid behind backward as far as they can "
            "(an estimate from stored times)."
        )
    roofline = run.number("bound.step_seconds")
    if roofline and cell.ranks == 1:
        rate = tables.number(run.batch_size / roofline)
        return f"Bound: {rate} {run.unit}/s, the roofline of the device's data sheet with no operations fused."
    return "No bound is known: the store lacks the times or the data sheet that one is made of."


def _answer(cell: Cell, run: Run, cells: Sequence[Cell]) -> Section:
    c = cell.configuration
    what = tables.title(cell.model)
    how = ", ".join([*tables.marks(c), c["compute_type"], f"batch {c['batch_size']} per rank", c["device"]])
    rate = f"{tables.estimate(cell.images_per_second)} {cell.unit}/s"
    bound = _bound(cell, run)
    if cell.ranks == 1:
        return Section(f"How fast does {what} train on one rank ({how})?", [Paragraph(f"{rate}. {bound}")])
    question = f"How well does {what} scale to {cell.ranks} ranks ({how}, {c['schedule']} schedule over {c['comm']})?"
    if cell.efficiency is None:
        said = f"{rate}; there is no baseline of one rank in the session, so the efficiency is not known."
        return Section(question, [Paragraph(said)])
    alone = [o for o in cells if o.kind == "solo" and o.configuration == c and o.allocation == cell.allocation]
    ideal = [
        f" of {tables.number(o.images_per_second.value * cell.ranks)} that perfect scaling would give" for o in alone
    ]
    reached = tables.efficiency_text(cell.efficiency)
    if efficiency.resolved(cell.efficiency):
        reached = reached.replace(" ", " % ", 1) + ":"
    else:
        reached = reached[0].upper() + reached[1:] + "."
    said = [f"{reached} {rate}{''.join(ideal)}.", bound, *([_largest_loss(run)] if run.decomposition else [])]
    return Section(question, [Paragraph(" ".join(said))])


def _answers(parts: Sequence[Measured]) -> Section:
    answers = []
    for measured in parts:
        for cell in measured.subjects:
            answer = _answer(cell, measured.newest(cell), measured.cells)
            if len(parts) > 1:
                answer = Section(f"{answer.title} System {measured.system.letter}", answer.blocks)
            answers.append(answer)
    shown, more = first(answers, MAX_SUBJECTS, "configurations")
    blocks = [Paragraph(more)] if more else []
    return Section("Question and answer", blocks or ([] if answers else [Paragraph("No run was taken.")]), shown)


def _next(evidence: Sequence[Evidence]) -> Section:
    lines = [line for item in evidence for line in advice.advise(item)]
    nothing = (
        "Nothing stands out: no resolved part of the step and no other measured figure calls for anything."
        if evidence
        else "No run was taken, so there is no evidence."
    )
    return Section("What to try next", bullets(lines) or [Paragraph(nothing)])


def _scaling_figure(measured: Measured, predictions: Sequence[Prediction]) -> Figure:
    models = list(dict.fromkeys(cell.model for cell in measured.cells))[:MAX_PANELS]

    def draw(path: Path) -> Path:
        from hvdb.show import plot_scaling

        cells = [cell for cell in measured.cells if cell.model in models]
        return plot_scaling.draw(cells, published.load(), path, predictions)

    return Figure("Images per second and scaling efficiency against ranks, beside the published points", draw)


def _scaling(measured: Measured, title: str, predictions: Sequence[Prediction]) -> Section:
    if not measured.cells:
        return Section(title)
    lines = [f"Note: {line}" for line in efficiency.notes(measured.cells, measured.system.runs)]
    blocks: list[Block] = [
        _scaling_figure(measured, predictions),
        Table(tables.EFFICIENCY_HEADER, tables.efficiency_rows(measured.cells)),
        *bullets([*tables.EFFICIENCY_NOTES, *lines]),
    ]
    beside = tables.published_rows(published.load(), list(dict.fromkeys(cell.model for cell in measured.cells)))
    if beside:
        blocks.append(Paragraph(f"Published beside it (other hardware; sources in {data.named(data.PUBLISHED)}):"))
        blocks.append(Table(tables.PUBLISHED_HEADER, beside))
    return Section(title, blocks)


def _decomposition(run: Run) -> Section:
    rows = []
    for part in dict.fromkeys([*tables.COMPONENTS, *run.decomposition]):
        figure = run.decomposition.get(part)
        if figure is not None:
            known = figure.low is not None and figure.high is not None
            span = f"{100 * figure.low:.1f} to {100 * figure.high:.1f}" if known else "-"
            size = f"{100 * figure.fraction:.1f}"
            shown = f"not resolved ({size})" if figure.unresolved else size
            if part == "efficiency":
                shown = tables.efficiency_text(Estimate(figure.fraction, figure.low, figure.high)).split(" [")[0]
            milliseconds = "-" if shown.startswith("not resolved:") else f"{1000 * figure.seconds:.1f}"
            rows.append((tables.COMPONENTS.get(part, part), shown, span, milliseconds))
    header = ("part of the step", "% of step", "95 % interval", "ms")
    return Section(f"{name(run)}, {world(run)}, run {run.short_id}", [Table(header, rows)])


def _share(part: str, figure: Component | None) -> str:
    """Returns the part in % of the step. `?`: not resolved; an efficiency that is not resolved has no figure."""
    if figure is None:
        return "-"
    if part == "efficiency" and not efficiency.resolved(Estimate(figure.fraction, figure.low, figure.high)):
        return "?"
    return f"{100 * figure.fraction:.1f}{' ?' if figure.unresolved else ''}"


def _others(runs: Sequence[Run]) -> list[Block]:
    """Returns a table with one row for each run, without intervals."""
    if not runs:
        return []
    rows = []
    for run in runs:
        shares = [_share(part, run.decomposition.get(part)) for part in tables.COMPONENTS]
        rows.append((run.short_id, f"{name(run)}, {world(run)}", *shares))
    header = ("run", "of", *(f"{title} %" for title in tables.COMPONENTS.values()))
    return [Paragraph("The other runs, in % of the step; ?: not resolved."), Table(header, rows, first_is_code=True)]


def _waterfall(measured: Measured, title: str) -> list[Section]:
    explained = [run for run in measured.system.runs if run.decomposition]
    if not explained:
        return []
    newest = {run.uuid for _, run in measured.reducing}
    leading = [run for run in explained if run.uuid in newest]
    panels = [run for run in leading if "efficiency" in run.decomposition][:MAX_PANELS]

    def draw(path: Path) -> Path:
        from hvdb.show import plot_waterfall

        return plot_waterfall.draw(panels, path)

    about = "From the ideal step down to the efficiency that was reached"
    figures: list[Block] = [Figure(about, draw)] if panels else []
    rest = _others([run for run in explained if run.uuid not in newest])
    return [Section(title, [*figures, *rest], [_decomposition(run) for run in leading])]


def _stands_out(examined: Examined | HvdbError) -> bool:
    if isinstance(examined, HvdbError):
        return False
    findings = examined.findings
    return bool(findings.slow_nodes or findings.slow_ranks or findings.unclear_ranks)


def _ranks_of(run: Run, examined: Examined | HvdbError, *, drawn: bool) -> Section:
    if isinstance(examined, HvdbError):
        return Section(f"{name(run)}, {world(run)}, run {run.short_id}", [Paragraph(f"Cannot be told: {examined}.")])

    def draw(path: Path) -> Path:
        from hvdb.show import plot_ranks

        picture = plot_ranks.picture(examined, rank_report.THRESHOLD, HEAT_MAP_COLUMNS)
        return plot_ranks.draw(picture, examined.findings, path, run.uuid)

    rows = rank_report.rows(examined)
    more = f"The slowest {SHOWN_RANKS} of {len(rows)} ranks ({data.called('ranks')} --all shows them all):"
    return Section(
        f"{name(run)}, {world(run)}, run {run.short_id}",
        [
            *bullets([*rank_report.conclusions(examined, rank_report.THRESHOLD), *examined.notes]),
            *([Figure("Own work of every rank against time, and the median of each rank", draw)] if drawn else []),
            *([Paragraph(more)] if len(rows) > SHOWN_RANKS else []),
            Table(rank_report.HEADER, rows[:SHOWN_RANKS]),
        ],
    )


def _ranks(parts: Sequence[Measured], ranks: Ranks) -> list[Section]:
    examined = [(run, ranks[run.uuid]) for measured in parts for _, run in measured.reducing if run.uuid in ranks]
    if not examined:
        return []
    how = (
        "Own work of the ranks (forward and backward, which wait for nobody) in the newest run on the most ranks of "
        f"each configuration; {data.called('ranks')} examines the others."
    )
    shown = [run.uuid for run, result in examined if _stands_out(result)][:MAX_HEAT_MAPS]
    return [
        Section(
            "Ranks", [Paragraph(how)], [_ranks_of(run, result, drawn=run.uuid in shown) for run, result in examined]
        )
    ]


def _lead(runs: Sequence[Run], parts: Sequence[Measured]) -> str:
    if not runs:
        return "No runs."
    sessions = len({run.session_uuid for run in runs})
    told = (
        f"{len(runs)} run{'s' if len(runs) > 1 else ''} in {sessions} session{'s' if sessions > 1 else ''}, "
        f"{runs[0].started_utc} to {runs[-1].started_utc} (UTC)"
    )
    machines = [
        f"on {measured.system.description}"
        if len(parts) == 1
        else f"system {measured.system.letter}: {measured.system.description}"
        for measured in parts
    ]
    return "; ".join([told, *machines]) + "."


def document(
    stored: Sequence[Run],
    selection: Selection,
    parts: Sequence[Measured],
    ranks: Ranks,
    profiled: Sequence[Run],
    predictions: Sequence[Prediction] = (),
) -> Document:
    """Returns the report.

    stored: all runs of the stores, which the report lists. selection: the runs that count. parts: the selected runs by
    system. ranks: UUID of a run -> the comparison of its ranks. profiled: runs whose operations may be shown.
    """
    evidence = [item for measured in parts for item in _evidence(measured, ranks)]
    sections = [_answers(parts), _next(evidence)]
    for measured in parts:
        which = f", system {measured.system.letter}" if len(parts) > 1 else ""
        sections.append(_scaling(measured, f"Scaling efficiency{which}", predictions))
        sections += _waterfall(measured, f"Where the step time goes{which}")
    cells = [cell for measured in parts for cell in measured.cells]
    sections += predicted.section(predictions, cells, published.load())
    sections += _ranks(parts, ranks)
    sections += report_facts.operations(profiled)
    sections += report_facts.timelines(stored)
    sections += report_facts.differences([measured.system for measured in parts])
    sections += report_facts.memory(selection.runs)
    records = report_facts.runs(stored)
    left_out = bullets([f"Left out of all figures above: {line}" for line in selection.left_out])
    sections.append(Section(records.title, [*left_out, *records.blocks]))
    sections += [report_facts.provenance(stored), report_facts.commands(stored)]
    return Document("hvd_bench report", _lead(stored, parts), sections)
