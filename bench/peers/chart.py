"""Draws the results of run.sh as SVG: time over size, both axes logarithmic.

    python3 chart.py RESULTS_FOLDER OUT.svg RANKS...

RESULTS_FOLDER has a folder for each number of ranks.
"""

import math
import os
import sys

from table import read_columns

WIDTH, HEIGHT = 470, 400
LEFT, RIGHT, TOP, BOTTOM = 62, 20, 104, 52
# As examples/train_fashion_mnist/chart.cpp has them: for light and dark pages, without variables.
STYLE = """<style>
  text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #667085; }
  .title { font-size: 17px; font-weight: 600; fill: #1f2430; }
  .panel { font-size: 13px; font-weight: 600; fill: #1f2430; }
  .paper { fill: #ffffff; } .grid { stroke: #e4e7ec; } .axis { stroke: #667085; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
  .s0 { stroke: #2563eb; } .s1 { stroke: #0891b2; } .s2 { stroke: #9333ea; }
  .s3 { stroke: #ea580c; } .s4 { stroke: #059669; }
  @media (prefers-color-scheme: dark) {
    text { fill: #98a2b3; } .title, .panel { fill: #e6e9ef; } .paper { fill: #14171f; }
    .grid { stroke: #2b303b; } .axis { stroke: #98a2b3; }
  }
</style>
"""


def size_text(size):
    for unit, name in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if size >= unit:
            return f"{size // unit} {name}"
    return str(size)


def time_text(microseconds):
    return f"{microseconds / 1e6:g} s" if microseconds >= 1e6 else (
        f"{microseconds / 1e3:g} ms" if microseconds >= 1e3 else f"{microseconds:g} us")


def panel(title, columns, origin):
    points = [(size, time) for _, times in columns for size, time in times.items()]
    low, high = min(size for size, _ in points), max(size for size, _ in points)
    first = math.floor(math.log10(min(time for _, time in points)))
    last = math.ceil(math.log10(max(time for _, time in points)))

    def x(size):
        part = math.log(size / low) / max(math.log(high / low), 1e-9)
        return origin + LEFT + part * (WIDTH - LEFT - RIGHT)

    def y(time):
        return HEIGHT - BOTTOM - (math.log10(time) - first) / (last - first) * (HEIGHT - TOP - BOTTOM)

    out = [f'<text x="{origin + LEFT}" y="54" class="panel">{title}</text>']
    for power in range(first, last + 1):
        at = y(10.0 ** power)
        out.append(f'<line class="grid" x1="{x(low):.1f}" y1="{at:.1f}" x2="{x(high):.1f}" y2="{at:.1f}"/>')
        out.append(f'<text x="{origin + LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
                   f"{time_text(10.0 ** power)}</text>")
    bottom = HEIGHT - BOTTOM
    out.append(f'<line class="axis" x1="{x(low):.1f}" y1="{bottom}" x2="{x(high):.1f}" y2="{bottom}"/>')
    size = low
    while size <= high:
        out.append(f'<text x="{x(size):.1f}" y="{bottom + 18}" text-anchor="middle">{size_text(size)}</text>')
        size *= 64
    out.append(f'<text x="{(x(low) + x(high)) / 2:.1f}" y="{bottom + 38}" text-anchor="middle">bytes</text>')
    for index, (name, times) in enumerate(columns):
        path = " ".join(f"{'L' if i else 'M'}{x(size):.1f} {y(time):.1f}"
                        for i, (size, time) in enumerate(sorted(times.items())))
        out.append(f'<path class="line s{index}" d="{path}"/>')
        at_x, at_y = origin + LEFT + 135 * (index % 3), 70 + 16 * (index // 3)
        out.append(f'<line class="line s{index}" x1="{at_x}" y1="{at_y}" x2="{at_x + 18}" y2="{at_y}"/>')
        out.append(f'<text x="{at_x + 24}" y="{at_y + 4}">{name}</text>')
    return "\n".join(out)


def main():
    folder, target, ranks = sys.argv[1], sys.argv[2], sys.argv[3:]
    panels = [panel(f"{n} ranks", read_columns(os.path.join(folder, n)), WIDTH * i)
              for i, n in enumerate(ranks)]
    width = WIDTH * len(panels)
    with open(target, "w", encoding="utf-8") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
                   f'width="{width}" height="{HEIGHT}" role="img">\n{STYLE}'
                   f'<rect class="paper" width="{width}" height="{HEIGHT}" rx="10"/>\n'
                   f'<text x="{LEFT}" y="28" class="title">all_reduce, f32 sum, on one host</text>\n'
                   + "\n".join(panels) + "\n</svg>\n")


if __name__ == "__main__":
    main()
