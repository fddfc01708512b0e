"""The page: a section for each experiment, and where every number comes from."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from gpvi.progress import Meter, as_meter
from gpvi_paper.claims import claims, judge
from gpvi_paper.experiments import EXPERIMENTS, PRESETS
from gpvi_paper.files import write_file
from gpvi_paper.placing import SHOWN, placed
from gpvi_paper.records import Record, latest, slug
from gpvi_paper.report.claims import claims_html
from gpvi_paper.report.elements import badge
from gpvi_paper.report.experiment_records import ExperimentRecords
from gpvi_paper.report.headline import headline_html
from gpvi_paper.report.section import section_html

PAGE = "index.html"
READING = (
    "↓ lower is better, ↑ higher is better; labels without an arrow are descriptive. — not run, or not measured for "
    "this method. “exact” is the value for the same number of draws from the posterior itself, or from the reference."
)
"""How the tables are read."""
REPEATED = 4
"""Styles of charts that occur so often become a class."""
_STYLED = r' style="((?:fill|stroke|font)[^"]*)"'


def write(
    records: Iterable[Record],
    directory: str | os.PathLike[str],
    *,
    unread: int = 0,
    progress: bool | Meter = False,
) -> Path:
    """Write the page into a directory.

    Parameters
    ----------
    records
        What the page shows: the newest record of each experiment, preset and method.
    directory
        The directory, which is made if there is none.
    unread
        The number of records that could not be read, which the page mentions.
    progress
        True for a bar, False for silence, or a `gpvi.progress.Meter`.

    Returns
    -------
    Path
        The path of the page.

    Raises
    ------
    gpvi.errors.StorageError
        If the page cannot be written.
    """
    path = Path(directory) / PAGE
    write_file(path, render(records, unread=unread, progress=progress), "the report")
    return path


def render(records: Iterable[Record], *, unread: int = 0, progress: bool | Meter = False) -> str:
    """Return the page as HTML. The parameters are those of `write`."""
    every = list(records)
    shown = sorted(latest(placed(every)), key=_place)
    by_experiment: dict[str, list[Record]] = {}
    for record in shown:
        by_experiment.setdefault(record.experiment, []).append(record)
    sections = [
        ExperimentRecords(EXPERIMENTS[name], group)
        for name, group in sorted(by_experiment.items(), key=lambda item: _known(item[0]))
        if name in EXPERIMENTS
    ]
    foreign = [name for name in by_experiment if name not in EXPERIMENTS]
    body = [
        _head(shown, _remarks(len(every) - len(shown), foreign, unread)),
        _contents(sections),
        claims_html(judge(claims(), every)),
        headline_html(sections),
        *_drawn(sections, as_meter(progress)),
        _provenance(shown),
    ]
    return page_html("gpvi: results", "\n".join(body))


def page_html(title: str, body: str) -> str:
    """Return a self-contained page."""
    body, shared = _with_shared_styles(_with_short_names(body))
    return _PAGE.format(title=escape(title), style=_style() + shared, body=body)


def _with_short_names(body: str) -> str:
    """Return the body with short identifiers of markers and clips: charts repeat them for every dot."""
    names = dict.fromkeys(re.findall(r' id="([mp][0-9a-f]{10})"', body))
    short = {name: f"i{number}" for number, name in enumerate(names)}
    return re.sub(
        r"(id=\"|href=\"#|url\(#)([mp][0-9a-f]{10})\b",
        lambda found: found[1] + short.get(found[2], found[2]),
        body,
    )


def _with_shared_styles(body: str) -> tuple[str, str]:
    """Return the body with a class in place of each style that its charts repeat, and the rules of these classes."""
    counts = Counter(re.findall(_STYLED, body))
    names = {style: f"s{i}" for i, (style, n) in enumerate(counts.most_common()) if n >= REPEATED}

    def named(found: re.Match[str]) -> str:
        return f' class="{names[found[1]]}"' if found[1] in names else found[0]

    rules = "".join(f".{name} {{ {style} }}\n" for style, name in names.items())
    return re.sub(_STYLED, named, body), rules


def _drawn(sections: Sequence[ExperimentRecords], meter: Meter) -> list[str]:
    """Return the sections, and tell the meter about each: pictures take time."""
    made: list[str] = []
    meter.start(len(sections), "page")
    try:
        for section in sections:
            meter.update(len(made), section.experiment.name)
            made.append(section_html(section))
    finally:
        meter.close()
    return made


def _style() -> str:
    return resources.files("gpvi_paper.report").joinpath("style.css").read_text("utf-8")


def _place(record: Record) -> tuple[int, int, str]:
    """Return the place of a record in the order of presets and of the methods of its experiment."""
    experiment = EXPERIMENTS.get(record.experiment)
    preset = list(SHOWN).index(record.preset) if record.preset in SHOWN else len(SHOWN)
    labels = (
        list(experiment.recipes(record.preset)) if experiment and record.preset in PRESETS else []
    )
    return (
        preset,
        labels.index(record.method) if record.method in labels else len(labels),
        record.method,
    )


def _known(name: str) -> tuple[int, str]:
    order = list(EXPERIMENTS)
    return (order.index(name) if name in order else len(order)), name


def _remarks(older: int, foreign: Sequence[str], unread: int) -> list[str]:
    """Return sentences about records that are not on the page."""
    remarks = []
    if older:
        remarks.append(f"{older} older record{'s' * (older > 1)} of the same runs omitted.")
    if foreign:
        remarks.append(
            f"Records of unknown experiments omitted: {', '.join(map(escape, foreign))}."
        )
    if unread:
        remarks.append(f"{unread} damaged record{'s' * (unread > 1)} omitted.")
    return remarks


def _head(records: Sequence[Record], remarks: Sequence[str]) -> str:
    presets = dict.fromkeys(record.preset for record in records)
    meanings = "".join(
        f"<li>{badge(p)} {escape(meaning)}</li>" for p, meaning in SHOWN.items() if p in presets
    )
    return (
        "<header><p class='kicker'>gpvi</p><h1>Neural samplers of a posterior, measured</h1>"
        "<p>Figures are mean ± standard deviation over n seeds. The paper’s own figures "
        "(<cite>Generative Particle Variational Inference via Estimation of Functional Gradients</cite>, ICML 2021) "
        "are shown beside ours and never mixed with them.</p>"
        f"<p class='caption'>{READING}</p>"
        f"<ul class='presets'>{meanings}</ul>"
        f"<p class='remark'>{' '.join(remarks)}</p></header>"
    )


def _contents(sections: Sequence[ExperimentRecords]) -> str:
    """Return the links to all sections, which stay at the top of the window."""
    links = "".join(
        f'<a href="#{escape(s.experiment.name)}" title="{escape(s.experiment.source)}">{escape(s.experiment.title)}</a>'
        for s in sections
    )
    return (
        "<nav class='contents' aria-label='Contents'><a href='#claims'>The paper’s claims</a>"
        "<a href='#headline'>At a glance</a>"
        f"{links}<a href='#provenance'>Where the numbers come from</a></nav>"
    )


def _provenance(records: Sequence[Record]) -> str:
    """Return the command, environment and specification of every record."""
    rows: list[str] = []
    last = None
    for record in sorted(records, key=lambda r: (_known(r.experiment), _place(r))):
        if record.experiment != last:
            rows += ["</details>"] * (last is not None)
            last = record.experiment
            title = f"<h3 class='from'>{escape(last)}</h3>"
            rows.append(
                f"<details class='more' id='from-{escape(last)}'><summary>{title}</summary>"
            )
        place = record.environment
        commit = f", commit {escape(place.commit)}" if place.commit else ""
        specification = escape(json.dumps(record.specification, ensure_ascii=False, indent=1))
        rows.append(
            f"<article id='{escape(slug(f'{record.experiment} {record.preset} {record.method}'))}'>"
            f"<h4>{escape(record.method)} {badge(record.preset)}</h4>"
            f"<p><code>{escape(record.command)}</code></p>"
            f"<p>gpvi {escape(place.library)}{commit} · Python {escape(place.python)} · JAX {escape(place.jax)} · "
            f"{escape(place.system)}, {place.cpus} CPU{'s' * (place.cpus != 1)}, device {escape(place.device)} · "
            f"seeds {', '.join(map(str, record.seeds))} · started {escape(record.started)} · "
            f"{record.seconds:,.0f} s in all</p>"
            f"<details><summary>specification</summary><pre>{specification}</pre></details></article>"
        )
    rows += ["</details>"] * (last is not None)
    return f"<footer id='provenance'><h2>Where the numbers come from</h2>{''.join(rows)}</footer>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""
