"""Draws the last step of a timeline that LOCKSTEP_TIMELINE made: timeline_svg.py FILE OUT.svg

One band for each rank, in it a line for each thread that did something in the step, and one for each
stream of a CUDA device. Perfetto
(https://ui.perfetto.dev) shows all steps, and lets one look closer.
"""

import html
import json
import sys

COLOURS = {
    "forward": "#4c78a8",
    "backward": "#72b7b2",
    "copy": "#eeca3b",
    "collective": "#e45756",
    "wait": "#f7b6b2",
    "agree": "#9d755d",
    "optimizer": "#54a24b",
}
WIDTH, LEFT, ROW, GAP, TOP, FONT = 960, 150, 22, 14, 58, 12


def read(path):
    with open(path) as file:
        text = file.read().rstrip()
    events = json.loads(text.rstrip(",") + "]")
    names = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
    return [event for event in events if event["ph"] == "X"], names


def kind_of(span):
    """Spans of a device have its name behind it."""
    return span["cat"].split(",")[0]


def last_step(spans):
    """From the earliest rank's last forward to the latest rank's last optimiser, and to its device's."""
    def last(rank, kind):
        found = {}
        for span in spans:
            if span["pid"] == rank and kind_of(span) == kind:
                found[span["cat"]] = span
        return found.values()

    ranks = sorted({span["pid"] for span in spans})
    start = min(span["ts"] for rank in ranks for span in last(rank, "forward"))
    ends = [span for rank in ranks for span in last(rank, "optimizer")]
    return start, max(span["ts"] + span["dur"] for span in ends)


def depth_of(span, track):
    """How many spans of its track it lies in."""
    end = span["ts"] + span["dur"]
    return sum(
        other is not span
        and other["ts"] <= span["ts"]
        and end <= other["ts"] + other["dur"]
        and other["dur"] > span["dur"]
        for other in track
    )


def draw(spans, names):
    start, end = last_step(spans)
    spans = [s for s in spans if s["ts"] < end and s["ts"] + s["dur"] > start]
    tracks = {}
    for span in spans:
        tracks.setdefault((span["pid"], span["tid"]), []).append(span)
    scale = (WIDTH - LEFT - 20) / (end - start)
    body, y, rank_before = [], TOP, None
    for (rank, thread), track in sorted(tracks.items()):
        if rank != rank_before:
            y += GAP
            body.append(f'<text x="8" y="{y + 15}" font-weight="bold">rank {rank}</text>')
            rank_before = rank
        label = html.escape(names.get((rank, thread), "").replace("collectives of ", "").replace("training (", "("))
        body.append(f'<text x="60" y="{y + 15}" fill="#555">{label[:14]}</text>')
        body.append(f'<rect x="{LEFT}" y="{y}" width="{WIDTH - LEFT - 20}" height="{ROW}" fill="#f4f4f4"/>')
        for span in sorted(track, key=lambda s: -s["dur"]):
            x = max(span["ts"], start)
            width = (min(span["ts"] + span["dur"], end) - x) * scale
            inset = min(3 * depth_of(span, track), 8)
            x = LEFT + (x - start) * scale
            title = f'{span["name"]}, {span["dur"] / 1000:.3f} ms'
            if "args" in span:
                title += f', {span["args"]["bytes"]} bytes'
            body.append(
                f'<rect x="{x:.2f}" y="{y + inset}" width="{max(width, 0.4):.2f}" '
                f'height="{ROW - 2 * inset}" fill="{COLOURS[kind_of(span)]}"><title>{title}</title></rect>'
            )
        y += ROW + 3
    y += 8
    for tenth in range(0, 11, 2):
        x = LEFT + tenth / 10 * (WIDTH - LEFT - 20)
        ms = tenth / 10 * (end - start) / 1000
        body.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{y}" stroke="#ccc" stroke-dasharray="2 3"/>')
        body.append(f'<text x="{x:.1f}" y="{y + 14}" text-anchor="middle">{ms:.1f} ms</text>')
    legend, x = [], LEFT
    for kind, colour in COLOURS.items():
        legend.append(f'<rect x="{x}" y="34" width="12" height="12" fill="{colour}"/>')
        legend.append(f'<text x="{x + 16}" y="44">{kind}</text>')
        x += 30 + 7 * len(kind)
    ranks = len({rank for rank, _ in tracks})
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 24}" '
        f'font-family="sans-serif" font-size="{FONT}">\n'
        f'<rect width="{WIDTH}" height="{y + 24}" fill="white"/>\n'
        f'<text x="{LEFT}" y="20" font-size="15">One training step on {ranks} ranks</text>\n'
        + "\n".join(legend + body)
        + "\n</svg>\n"
    )


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    spans, names = read(sys.argv[1])
    if not spans:
        sys.exit(f"timeline_svg.py: there are no spans in {sys.argv[1]}")
    with open(sys.argv[2], "w") as file:
        file.write(draw(spans, names))


if __name__ == "__main__":
    main()
