"""Counters in the text format that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """One metric: its name without the prefix, and a value for each set of labels."""

    name: str
    kind: str  # "counter" or "gauge"
    text: str
    values: Iterable[tuple[Labels, float]]

    def lines(self) -> Iterable[str]:
        name = f"aiozerocopy_{self.name}"
        yield f"# HELP {name} {self.text}"
        yield f"# TYPE {name} {self.kind}"
        for labels, value in self.values:
            pairs = ",".join(
                f'{key}="{_escaped(label)}"' for key, label in labels.items()
            )
            yield f"{name}{{{pairs}}} {value!r}" if pairs else f"{name} {value!r}"


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def as_page(metrics: Iterable[Metric]) -> bytes:
    """The whole page."""
    return "".join(
        f"{line}\n" for metric in metrics for line in metric.lines()
    ).encode()
