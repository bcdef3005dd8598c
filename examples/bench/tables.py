"""Medians, ratios and Markdown out of measured rounds. Measures nothing."""

import statistics

OURS = "Millrace"


def summary(runs):
    """Median, least and most of one engine's runs of one test, with the runs themselves. `None` without any."""
    rates = [run["tokens_per_second"] for run in runs]
    if not rates:
        return None
    return {
        "median": statistics.median(rates),
        "min": min(rates),
        "max": max(rates),
        "disturbed": sum(run["disturbed"] for run in runs),
        "runs": runs,
    }


def compare(engines):
    """Name of the peer with the highest median, and ours divided by it; `None`s where one of them is missing."""
    peers = {name: cell["median"] for name, cell in engines.items() if name != OURS and cell}
    if not peers:
        return None, None
    best = max(peers, key=peers.get)
    ours = engines.get(OURS)
    return best, ours["median"] / peers[best] if ours else None


def cell(figure):
    """`median [min..max]`, with a star where a round was disturbed in each of its attempts."""
    if figure is None:
        return "-"
    star = "\\*" if figure["disturbed"] else ""
    return f"{digits(figure['median'])} [{digits(figure['min'])}..{digits(figure['max'])}]{star}"


def digits(value):
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def table(rows, names):
    """Markdown of rows that share a file and a number of threads: tests down, engines across."""
    lines = [f"| test | {' | '.join(names)} | best peer | ratio |", "|---" * (len(names) + 3) + "|"]
    for row in rows:
        cells = [cell(row["engines"].get(name)) for name in names]
        best, ratio = compare(row["engines"])
        lines.append(f"| {row['test']} | {' | '.join(cells)} | {best or '-'} | {'-' if ratio is None else f'{ratio:.2f}'} |")
    return "\n".join(lines)


def described(machine):
    return f"{machine['cpu']}, {machine['cores']} cores ({', '.join(machine['isa'])}), Linux {machine['kernel']}"


def report(results):
    """All tables, and beneath them what the figures are and what is missing."""
    machine = results["machine"]
    lines = [f"{described(machine)}; tokens/s: median [min..max]"]
    groups = {}
    for row in results["rows"]:
        groups.setdefault((row["gguf"], row["recipes"], row["threads"]), []).append(row)
    for (gguf, recipes, threads), rows in groups.items():
        names = [name for name in results["programs"] if any(row["engines"].get(name) for row in rows)]
        rounds = sorted({len(figure["runs"]) for row in rows for figure in row["engines"].values() if figure})
        heading = f"{gguf}, Millrace {recipes}, {threads} thread{'s' if threads > 1 else ''}, rounds: {', '.join(map(str, rounds))}"
        lines += ["", heading, "", table(rows, names)]
    lines += ["", *(f"- {name}: {version}" for name, version in results["programs"].items())]
    lines += [f"- Left out: {text}" for text in results["left_out"]]
    lines += [f"- Failed: {text}" for text in results["failures"]]
    if any(figure["disturbed"] for row in results["rows"] for figure in row["engines"].values() if figure):
        bound = results["max_foreign_percent"]
        lines.append(f"- \\*: rounds in which others took more than {bound:g} % of a core in every attempt; repeat these.")
    lines += [f"- {text}" for text in results["notes"]]
    return "\n".join(lines)
