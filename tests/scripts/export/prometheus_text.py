"""Parses Prometheus's text format 0.0.4 strictly, as node_exporter's textfile collector must be able to read it.

Source: https://prometheus.io/docs/instrumenting/exposition_formats and collector/textfile.go of node_exporter.
"""

from __future__ import annotations

import re

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\"n])*)"'
_LABELS = re.sub(r"\((?!\?)", "(?:", rf"{_LABEL}(?:,{_LABEL})*")
_COMMENT = re.compile(rf"# (HELP|TYPE) ({_NAME}) ((?:[^\\\n]|\\[\\n])+)")
_SAMPLE = re.compile(rf"({_NAME})\{{({_LABELS})\}} (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)")

Samples = dict[tuple[tuple[str, str], ...], float]  # (label, value) pairs, sorted -> value of the sample


def parse(text: str) -> dict[str, Samples]:
    """Returns metric -> its samples. Errors: ValueError with the line that breaks a rule.

    Stricter than the format: each metric has HELP, then TYPE gauge, then its samples, none of which has a time or is
    not finite.
    """
    metrics: dict[str, Samples] = {}
    expected, metric = "HELP", ""
    if not text.endswith("\n"):
        raise ValueError("the last line has no end")
    for line in text[:-1].split("\n"):
        if comment := _COMMENT.fullmatch(line):
            kind, name, words = comment.groups()
            begins = kind == "HELP" and expected in ("HELP", "sample or HELP") and name not in metrics
            if not begins and (kind, name, words, expected) != ("TYPE", metric, "gauge", "TYPE"):
                raise ValueError(f"not expected here: {line!a}")
            expected, metric = ("TYPE" if begins else "sample"), name
            metrics.setdefault(name, {})
            continue
        sample = _SAMPLE.fullmatch(line)
        if not sample or not expected.startswith("sample") or sample[1] != metric:
            raise ValueError(f"no sample of {metric}: {line!a}")
        pairs = [(name, _unescaped(value)) for name, value in re.findall(_LABEL, sample[2])]
        key = tuple(sorted(pairs))
        if len(dict(pairs)) != len(pairs) or key in metrics[metric]:
            raise ValueError(f"a label or a sample occurs twice: {line!a}")
        metrics[metric][key] = float(sample[3])
        expected = "sample or HELP"
    if expected != "sample or HELP":
        raise ValueError("the last metric has no sample")
    return metrics


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], value)
