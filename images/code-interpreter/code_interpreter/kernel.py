"""Runs inside the Python kernel, as an extension of IPython: what E2B's clients read of values, and the environment of a cell."""

import os

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

_before = {}


def enter(variables):
    """Sets variables for one cell."""
    _before.clear()
    _before.update({name: os.environ.get(name) for name in variables})
    os.environ.update(variables)


def leave():
    """Makes them what they were before the cell."""
    for name, value in _before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _before.clear()


def _plain(value):
    """A cell of a table as JSON has it."""
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "item"):
        return value.item()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


class DataFormatter(BaseFormatter):
    """Tables of pandas as columns of values."""

    format_type = Unicode("e2b/data")
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict

    def __call__(self, value):
        # Who has made a table has imported pandas; nobody else waits for it.
        import sys

        pandas = sys.modules.get("pandas")
        if pandas is None or not isinstance(value, pandas.DataFrame):
            return super().__call__(value)
        columns = value.to_dict(orient="list")
        return {str(name): [_plain(cell) for cell in cells] for name, cells in columns.items()}


class ChartFormatter(BaseFormatter):
    """Figures of matplotlib as the data that was drawn."""

    format_type = Unicode("e2b/chart")
    print_method = ObjectName("_repr_e2b_chart_")
    _return_type = dict

    def __call__(self, value):
        import sys

        figure = sys.modules.get("matplotlib.figure")
        if figure is None or not isinstance(value, figure.Figure):
            return super().__call__(value)
        from e2b_charts import chart_figure_to_dict

        try:
            return chart_figure_to_dict(value)
        except Exception:
            # The picture is there all the same: a kind of drawing that is not understood has no data.
            return None


def load_ipython_extension(shell):
    """Called by IPython when the kernel starts."""
    for formatter in (DataFormatter(parent=shell.display_formatter), ChartFormatter(parent=shell.display_formatter)):
        shell.display_formatter.formatters[formatter.format_type] = formatter
