"""Builds the report on one or more stores as a document: first questions and answers, then evidence, then records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdb.base import data
from hvdb.base.errors import HvdbError
from hvdb.judge import beside_replay, efficiency
from hvdb.judge.comparable import System
from hvdb.judge.efficiency import EfficiencyRow, Selection
from hvdb.judge.rank_work import Examined, others_used
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
SUMMARY_HEADER = ("network", "efficiency, %", "largest loss, of the step", "what to try")
# The cost of the reductions of two runs can be compared only if these columns are equal.
REDUCTION_COLUMNS = ("device", "allreduce_type", "schedule", "comm", "data_plane", "world_size", "nodes", "traced")


@dataclass(frozen=True)
class Measured:
    """One system and its efficiency table. subjects: for each configuration, the row with the most ranks."""

    system: System
    cells: Sequence[EfficiencyRow]

    @property
    def subjects(self) -> list[EfficiencyRow]:
        subjects: dict[tuple, EfficiencyRow] = {}
        for cell in self.cells:
            key = tuple(cell.configuration.values())
            known = subjects.get(key)
            if known is None or (cell.kind == "full", cell.ranks) >= (known.kind == "full", known.ranks):
                subjects[key] = cell
        return list(subjects.values())

    def newest(self, cell: EfficiencyRow) -> Run:
        """Returns the newest of the cell's runs whose phase is `cell.kind`."""
        ids = set(cell.run_ids)
        return [run for run in self.system.runs if run.uuid in ids and run.phase == cell.kind][-1]

    @property
    def reducing(self) -> list[tuple[EfficiencyRow, Run]]:
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
        if part != "efficiency" and figure.fraction.value > 0 and not figure.unresolved
    }
    if not lost:
        return "none is resolved" if run.decomposition else "-"
    part = max(lost, key=lambda name: lost[name].fraction.value)
    return f"{tables.COMPONENTS.get(part, part)}: {share(lost[part])}"


def _reached(cell: EfficiencyRow, run: Run) -> str:
    """Returns the efficiency, or the rate of one rank, and its bound if that says something."""
    if cell.ranks > 1:
        bound = f"; bound: {tables.percent(cell.ring_bound)}" if tables.binds(cell) else ""
        return f"{'no baseline' if cell.efficiency is None else tables.efficiency_text(cell.efficiency)}{bound}"
    roofline = run.number("bound.step_seconds")
    bound = f"; roofline: {tables.number(run.batch_size / roofline)}" if roofline else ""
    return f"{tables.estimate(cell.images_per_second)} {cell.unit}/s{bound}"


def _how(cell: EfficiencyRow) -> list[str]:
    c = cell.configuration
    alone = [c["compute_type"], f"batch {c['batch_size']}", c["device"]]
    return alone if cell.ranks == 1 else [*alone, f"{c['schedule']} schedule over {c['comm']}"]


def _summary(parts: Sequence[Measured], evidence: Mapping[str, Evidence]) -> Section:
    """Returns the table that the page begins with, and the cautions of its runs. evidence: UUID of a run -> its own."""
    subjects = [(measured, cell, measured.newest(cell)) for measured in parts for cell in measured.subjects]
    shown, more = first(subjects, MAX_SUBJECTS, "configurations")
    if not shown:
        return Section("Summary", [Paragraph("No run was taken.")])
    common = [word for word in _how(shown[0][1]) if all(word in _how(cell) for _, cell, _ in shown)]
    rows = []
    for measured, cell, run in shown:
        own = [word for word in _how(cell) if word not in common]
        system = [f"system {measured.system.letter}"] if len(parts) > 1 else []
        ranks = f"{cell.ranks} rank{'s' if cell.ranks > 1 else ''}"
        advised = advice.advise(evidence[run.uuid]) if run.uuid in evidence else []
        what = ", ".join([name(run), ranks, *own, *system])
        rows.append((what, _reached(cell, run), _largest_loss(run), advised[0].do if advised else "-"))
    lines = [f"Every row: {', '.join(common)}. [..]: 95 % interval." if common else "[..]: 95 % interval."]
    every = [cell for measured in parts for cell in measured.cells]
    lines += beside_replay.notes(every, [run for measured in parts for run in measured.system.runs])
    busy = [f"{used} ({run.short_id})" for _, _, run in shown if (used := others_used(run))]
    lines += [f"The machine was busy: meanwhile other programs used {', '.join(busy)}."] if busy else []
    lines += [f"Caution: {line}" for line in efficiency.cautions([run for _, _, run in shown])]
    return Section("Summary", [Table(SUMMARY_HEADER, rows), *bullets([*filter(None, [more]), *lines])])


def _next(evidence: Iterable[Evidence]) -> Section:
    lines = [f"{item.where}: {said}" for item in evidence for said in advice.advise(item)]
    nothing = "Nothing stands out: no part of the step is both large and known well, and nothing else calls for action."
    return Section("What to try next", bullets(lines) or [Paragraph(nothing)])


def _scaling_figure(measured: Measured, predictions: Sequence[Prediction]) -> Figure:
    models = list(dict.fromkeys(cell.model for cell in measured.cells))[:MAX_PANELS]

    def draw(path: Path) -> Path:
        from hvdb.show import plot_scaling

        cells = [cell for cell in measured.cells if cell.model in models]
        return plot_scaling.draw(cells, published.load(), path, predictions)

    return Figure("Images per second and scaling efficiency against ranks", draw)


def _scaling(measured: Measured, title: str, predictions: Sequence[Prediction]) -> Section:
    if not measured.cells:
        return Section(title)
    header, rows, notes = tables.efficiency_table(measured.cells)
    lines = [f"Note: {line}" for line in efficiency.notes(measured.cells, measured.system.runs)]
    blocks: list[Block] = [
        _scaling_figure(measured, predictions),
        Table(header, rows),
        *bullets([*notes, *lines]),
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
            share = figure.fraction
            span = f"{100 * share.low:.1f} to {100 * share.high:.1f}" if share.known else "-"
            size = f"{100 * share.value:.1f}"
            shown = f"not resolved ({size})" if figure.unresolved else size
            if part == "efficiency":
                shown = tables.efficiency_text(share).split(" [")[0]
            milliseconds = "-" if shown.startswith("not resolved:") else f"{1000 * figure.seconds:.1f}"
            rows.append((tables.COMPONENTS.get(part, part), shown, span, milliseconds))
    header = ("part of the step", "% of step", "95 % interval", "ms")
    return Section(f"{name(run)}, {world(run)}, run {run.short_id}", [Table(header, rows)])


def _share(part: str, figure: Component | None) -> str:
    """Returns the part in % of the step. `?`: not resolved; an efficiency that is not resolved has no figure."""
    if figure is None:
        return "-"
    if part == "efficiency" and not efficiency.resolved(figure.fraction):
        return "?"
    return f"{100 * figure.fraction.value:.1f}{' ?' if figure.unresolved else ''}"


def _others(runs: Sequence[Run]) -> list[Block]:
    """Returns a table with one row for each run, without intervals."""
    if not runs:
        return []
    rows = []
    absent = {"input"} - {part for run in runs for part in run.decomposition}  # most trainings never wait for input
    titles = {part: title for part, title in tables.COMPONENTS.items() if part not in absent}
    for run in runs:
        shares = [_share(part, run.decomposition.get(part)) for part in titles]
        rows.append((run.short_id, f"{name(run)}, {world(run)}", *shares))
    header = ("run", "of", *(f"{title} %" for title in titles.values()))
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
    evidence = {item.run.uuid: item for measured in parts for item in _evidence(measured, ranks)}
    sections = [_summary(parts, evidence), _next(evidence.values())]
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
