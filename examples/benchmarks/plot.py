"""Draws what the benchmarks measured: cost and memory against k, as SVG.

    python examples/benchmarks/windows.py --json > windows.json
    python examples/benchmarks/plot.py windows.json windows.svg
    python examples/benchmarks/memory.py --k 2 4 8 16 --json > memory.json
    python examples/benchmarks/plot.py memory.json memory.svg

One panel for each workload, one line for each way to train. The axis of k is
logarithmic, and so is that of values far apart. It needs nothing but Python.
"""

import argparse
import collections
import json
import math
from xml.sax import saxutils

TITLES = collections.OrderedDict([
    ("each", "minimize each"), ("whole", "whole batch"),
    ("recipe", "session recipe"), ("numpy", "NumPy recipe"),
    ("wrapper", "tf.cond wrapper"), ("build", "tf1accum.build"),
    ("callable", "build, make_callable"),
    ("optimizer", "AccumulatingOptimizer"), ("host", "build_host"),
    ("microbatch", "microbatch_gradients")])
COLOURS = ["#888888", "#000000", "#e69f00", "#d55e00", "#cc79a7", "#0072b2",
           "#56b4e9", "#009e73", "#b8a900", "#7b3fb5"]
WIDTH, HEIGHT, MARGIN, COLUMNS = 300, 190, 46, 3


def panels_of(results):
    """What is drawn: titles, a label, and lines of (k, value) by name."""
    panels = collections.OrderedDict()
    for found in results:
        title = found.get("title", "peak of resident memory")
        lines = panels.setdefault(title, collections.OrderedDict())
        for name in TITLES:
            if name in found["contestants"]:
                entry = found["contestants"][name]
                value = (entry["ratio"][1] if "ratio" in entry
                         else entry["peak"][1] / 1e6)
                lines.setdefault(name, []).append((found["k"], value))
    return panels


def text(x, y, words, anchor="middle", size=11):
    return ('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}">{}'
            '</text>'.format(x, y, anchor, size, saxutils.escape(words)))


def line(points, colour, width=1.):
    return ('<polyline points="{}" fill="none" stroke="{}" stroke-width="{}"/>'
            .format(" ".join("{:.1f},{:.1f}".format(*point)
                             for point in points), colour, width))


def ticks_of(lowest, highest):
    """Where grid lines are: from 0, or, of values far apart, 1, 10, 100.

    From 0 they are 1, 2 or 5 times a power of ten apart.
    """
    if 1. <= lowest < highest / 30.:
        return [10. ** i for i in range(math.ceil(math.log10(highest)) + 1)]
    power = 10. ** math.floor(math.log10(highest / 4.))
    step = next(power * times for times in (1, 2, 5, 10)
                if highest <= 5 * power * times)
    return [step * i for i in range(math.ceil(highest / step) + 1)]


def draw_panel(title, lines, left, top):
    """The elements of one panel, a list of strings."""
    ks = sorted({k for points in lines.values() for k, _ in points})
    values = [value for points in lines.values() for _, value in points]
    ticks = ticks_of(min(values), max(values))
    # A logarithmic axis does not start at 0.
    along = math.log if ticks[0] else float
    bottom = along(ticks[0])
    height = along(ticks[-1]) - bottom
    low, span = math.log(ks[0]), math.log(ks[-1]) - math.log(ks[0]) or 1.

    def place(k, value):
        return (left + WIDTH * (math.log(k) - low) / span,
                top + HEIGHT * (1. - (along(value) - bottom) / height))

    drawn = [text(left + WIDTH / 2, top - 8, title, size=12)]
    for tick in ticks:
        y = place(ks[0], tick)[1]
        drawn += [line([(left, y), (left + WIDTH, y)], "#dddddd"),
                  text(left - 5, y + 4, "{:g}".format(tick), "end")]
    for k in ks:
        drawn.append(text(place(k, ticks[0])[0], top + HEIGHT + 15, str(k)))
    for name, points in lines.items():
        places = [place(*point) for point in points]
        colour = COLOURS[list(TITLES).index(name)]
        drawn.append(line(places, colour, 1.8))
        drawn += ['<circle cx="{:.1f}" cy="{:.1f}" r="2.5" fill="{}"/>'.format(
            x, y, colour) for x, y in places]
    return drawn


def draw(results):
    """The text of an SVG file."""
    panels = panels_of(results)
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    wide, high = WIDTH + 2 * MARGIN, HEIGHT + 1.5 * MARGIN
    drawn = []
    for i, (title, lines) in enumerate(panels.items()):
        drawn += draw_panel(title, lines, MARGIN + wide * (i % columns),
                            MARGIN + high * (i // columns))
    names = [name for name in TITLES
             if any(name in lines for lines in panels.values())]
    legend = 2 if columns == 1 else columns + 2
    below = MARGIN + high * rows
    what = ("times the k bare gradient runs" if "title" in results[0]
            else "MB above the imports")
    drawn.append(text(MARGIN, below - 12, "against k: " + what, "start"))
    for i, name in enumerate(names):
        x = MARGIN / 2 + wide * columns / legend * (i % legend)
        y = below + 8 + 18 * (i // legend)
        drawn += [line([(x, y), (x + 18, y)],
                       COLOURS[list(TITLES).index(name)], 3),
                  text(x + 23, y + 4, TITLES[name], "start")]
    return ('<svg xmlns="http://www.w3.org/2000/svg" width="{:.0f}" '
            'height="{:.0f}" font-family="sans-serif">\n'
            '<rect width="100%" height="100%" fill="white"/>\n{}\n</svg>\n'
            .format(wide * columns, below + 18 * -(-len(names) // legend) + 12,
                    "\n".join(drawn)))


def main():
    parser = argparse.ArgumentParser(
        description="Draws what windows.py --json or memory.py --json printed "
        "against k, as SVG.")
    parser.add_argument("json", help="the file with what was printed")
    parser.add_argument("svg", help="the file to write")
    settings = parser.parse_args()
    try:
        with open(settings.json) as file:
            drawn = draw(json.load(file)["results"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        parser.error(
            "{} must hold what windows.py or memory.py printed with --json; "
            "{}: {}".format(settings.json, type(error).__name__, error))
    with open(settings.svg, "w") as file:
        file.write(drawn)


if __name__ == "__main__":
    main()
