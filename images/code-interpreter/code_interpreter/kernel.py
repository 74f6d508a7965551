"""Runs inside the Python kernel, as an extension of IPython: what E2B's clients read of values, and the environment of a cell."""

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder

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
        figure = sys.modules.get("matplotlib.figure")
        if figure is None or not isinstance(value, figure.Figure):
            return super().__call__(value)
        from e2b_charts import chart_figure_to_dict

        try:
            return chart_figure_to_dict(value)
        except Exception:
            # The picture is there all the same: a kind of drawing that is not understood has no data.
            return None


def _show_pictures(pillow):
    """Pictures of Pillow that a cell shows, or saves to a file, are among its results."""
    from IPython.display import display

    save = pillow.Image.save

    def save_and_show(self, fp, format=None, **params):
        save(self, fp, format, **params)
        # matplotlib saves its figures with Pillow; those are shown as figures.
        saved_by = sys._getframe(1).f_globals.get("__name__", "")
        if isinstance(fp, (str, os.PathLike)) and saved_by.partition(".")[0] != "matplotlib":
            display(self)

    def show(self, title=None):
        display(self)

    pillow.Image.save = save_and_show
    pillow.Image.show = show


class PillowFinder(MetaPathFinder):
    """Waits for the first import of Pillow: a kernel that never imports it does not wait for it either."""

    def find_spec(self, name, path, target=None):
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            _show_pictures(module)

        spec.loader.exec_module = load_and_change
        return spec


def load_ipython_extension(shell):
    """Called by IPython when the kernel starts."""
    for formatter in (DataFormatter(parent=shell.display_formatter), ChartFormatter(parent=shell.display_formatter)):
        shell.display_formatter.formatters[formatter.format_type] = formatter
    sys.meta_path.insert(0, PillowFinder())
