"""Every picture; the only importer of matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# policy, backends, capacity in pages, times in seconds: (n,), pages: (n, backends)
PartitionPanel = tuple[str, Sequence[str], int, Sequence[float], Sequence[Sequence[int]]]


def partitions(path: Path, panels: Sequence[PartitionPanel]) -> None:
    """Share of the cache that each backend holds over time, one panel a policy."""
    figure = Figure(figsize=(5.5 * len(panels), 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (policy, backends, capacity, times, pages) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), number + 1)
        for index, backend in enumerate(backends):
            shares = [100.0 * row[index] / capacity for row in pages]
            axes.plot(list(times), shares, label=backend)
        axes.set_title(policy)
        axes.set_xlabel("seconds since the mount")
        axes.set_ylim(0, 100)
        axes.grid(visible=True, alpha=0.3)
        if number == 0:
            axes.set_ylabel("share of the cache (%)")
            axes.legend(loc="center right")
    figure.savefig(path, dpi=110)
