"""The report of a run as one self-contained page: a timeline, figures, and tables to sort."""

from sim.report.page import page
from sim.report.panel import Panel
from sim.report.views import of_comparison, of_difference, of_recording, of_run, of_search, panel
from sim.table import Table

__all__ = [
    "Panel",
    "Table",
    "of_comparison",
    "of_difference",
    "of_recording",
    "of_run",
    "of_search",
    "page",
    "panel",
]
