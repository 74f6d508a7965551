# Runs the Python program that stands on the standard input, as 'python -' does, and reports the charts that it shows:
#     charts.py FD ARGUMENT…
# For every figure of matplotlib that the program shows, there is a line of JSON on the file descriptor, in the form
# that the clients read: the kind of chart, its texts, ticks and data, and a picture.
import sys


def _prepare(fd):
    import base64
    import importlib.abc
    import importlib.util
    import io
    import json
    import os

    LIMIT = 10_000  # Elements and points of one chart.
    shown_boxes = {}

    def number(value):
        try:
            value = float(value)
        except (TypeError, ValueError):
            return None
        # JSON has no others.
        return value if value == value and abs(value) != float("inf") else None

    def numbers(values):
        return [value for value in map(number, values) if value is not None]

    def text(value):
        return str(value)[:1000]

    def points(xs, ys):
        pairs = ([number(x), number(y)] for x, y in list(zip(xs, ys))[:LIMIT])
        return [pair for pair in pairs if None not in pair]

    def label_of(artist, fallback):
        label = text(artist.get_label() or "")
        return fallback if label.startswith("_") or not label else label

    def pie(axes):
        from matplotlib.patches import Wedge

        wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
        texts = [one.get_text() for one in axes.texts if one.get_text()]
        elements = []
        for at, wedge in enumerate(wedges[:LIMIT]):
            label = label_of(wedge, texts[at] if at < len(texts) else "")
            angle = abs(wedge.theta2 - wedge.theta1)
            elements.append({"label": label, "angle": number(angle), "radius": number(wedge.r)})
        return elements

    def boxes(axes):
        elements = []
        for stats in shown_boxes.get(id(axes), [])[:LIMIT]:
            elements.append(
                {
                    "label": text(stats.get("label", "")),
                    "min": number(stats.get("whislo")),
                    "first_quartile": number(stats.get("q1")),
                    "median": number(stats.get("med")),
                    "third_quartile": number(stats.get("q3")),
                    "max": number(stats.get("whishi")),
                    "outliers": numbers(list(stats.get("fliers", []))[:LIMIT]),
                }
            )
        return elements

    def bars(axes):
        from matplotlib.container import BarContainer

        elements = []
        for container in axes.containers:
            if not isinstance(container, BarContainer):
                continue
            group = label_of(container, "")
            upright = getattr(container, "orientation", "vertical") != "horizontal"
            axis = axes.xaxis if upright else axes.yaxis
            names = {tick: one.get_text() for tick, one in zip(axis.get_ticklocs(), axis.get_ticklabels())}
            for bar in container.patches[: LIMIT - len(elements)]:
                center = bar.get_x() + bar.get_width() / 2 if upright else bar.get_y() + bar.get_height() / 2
                near = min(names, key=lambda tick: abs(tick - center), default=None)
                named = near is not None and abs(near - center) < 1e-6 and names[near]
                value = bar.get_height() if upright else bar.get_width()
                elements.append(
                    {"label": text(named or f"{center:g}"), "group": group, "value": f"{float(value):g}"}
                )
        return elements

    def scatters(axes):
        from matplotlib.collections import PathCollection

        elements = []
        for at, collection in enumerate(one for one in axes.collections if isinstance(one, PathCollection)):
            offsets = list(collection.get_offsets())[:LIMIT]
            found = points([offset[0] for offset in offsets], [offset[1] for offset in offsets])
            elements.append({"label": label_of(collection, f"Scatter {at}"), "points": found})
        return elements

    def lines(axes):
        elements = []
        for at, line in enumerate(axes.lines):
            found = points(line.get_xdata(orig=False), line.get_ydata(orig=False))
            elements.append({"label": label_of(line, f"Line {at}"), "points": found})
        return elements

    KINDS = [
        ("pie", pie),
        ("box_and_whisker", boxes),
        ("bar", bars),
        ("scatter", scatters),
        ("line", lines),
    ]

    def chart_of(axes):
        kind, elements = "unknown", []
        for name, find in KINDS:
            found = find(axes)
            if found:
                kind, elements = name, found[:LIMIT]
                break
        chart = {"type": kind, "title": text(axes.get_title()), "elements": elements}
        if kind == "pie":
            return chart
        chart.update(x_label=text(axes.get_xlabel()), y_label=text(axes.get_ylabel()))
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            chart[f"{name}_ticks"] = numbers(axis.get_ticklocs())
            chart[f"{name}_tick_labels"] = [text(label.get_text()) for label in axis.get_ticklabels()]
            chart[f"{name}_scale"] = text(axis.get_scale())
        return chart

    def figure_of(figure):
        # Saving draws the parts that matplotlib draws only when they are needed, such as the texts of ticks.
        picture = io.BytesIO()
        figure.savefig(picture, format="png")
        every = [chart_of(axes) for axes in figure.axes]
        if len(every) == 1:
            chart = every[0]
        else:
            title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else ""
            chart = {"type": "composite_chart" if every else "unknown", "title": text(title), "elements": every}
        chart["png"] = base64.b64encode(picture.getvalue()).decode()
        return chart

    def tell(figure):
        try:
            line = json.dumps(figure_of(figure)).encode() + b"\n"
            while line:
                line = line[os.write(fd, line) :]
        except Exception as error:  # The program goes on, whatever is wrong with its figure.
            print(f"a chart could not be described: {error!r}", file=sys.stderr)

    def watch(pyplot):
        from matplotlib.axes import Axes

        drawn = Axes.bxp

        def bxp(self, bxpstats, *args, **kwargs):
            bxpstats = list(bxpstats)
            shown_boxes.setdefault(id(self), []).extend(bxpstats)
            return drawn(self, bxpstats, *args, **kwargs)

        def show(*args, **kwargs):
            for figure in [pyplot.figure(number) for number in pyplot.get_fignums()]:
                tell(figure)
            pyplot.close("all")
            shown_boxes.clear()

        Axes.bxp = bxp
        pyplot.show = show

    class Finder(importlib.abc.MetaPathFinder):
        """Looks after matplotlib.pyplot when it has been imported."""

        def find_spec(self, name, path, target=None):
            if name != "matplotlib.pyplot":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            if spec is None or spec.loader is None:
                return None
            load = spec.loader.exec_module

            def exec_module(module):
                load(module)
                watch(module)

            spec.loader.exec_module = exec_module
            return spec

    # There is no screen.
    os.environ.setdefault("MPLBACKEND", "agg")
    sys.meta_path.insert(0, Finder())


def _run():
    import builtins
    import traceback
    import types

    fd, source = int(sys.argv[1]), sys.stdin.buffer.read()
    sys.argv = ["-", *sys.argv[2:]]
    _prepare(fd)
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    try:
        exec(compile(source, "<stdin>", "exec"), main.__dict__)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        # Leaves out the frame of this script.
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)
        sys.exit(1)


_run()
