"""README's tables from the benches' JSON: python benches/table.py [README.md]

Writes what benches/results/ says between the markers `<!-- table NAME -->` and `<!-- end -->` of each table, so that no figure is
copied by hand. Knows every result file by name; one that is not there leaves its table as it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benches" / "results"
MODELS = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": "SmolLM2-135M Q4_1",
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf": "Qwen2.5-Coder-1.5B Q4_K_M",
}
ENGINES = {"headstart": "Headstart", "llama.cpp": "llama.cpp", "llama_cpp_python": "llama-cpp-python"}


def read(name: str) -> dict[str, Any]:
    """One result file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def rows_of(headings: list[str], rows: list[list[str]]) -> str:
    """A markdown table."""
    lines = ["| " + " | ".join(line) + " |" for line in (headings, *rows)]
    return "\n".join([lines[0], "|---" * len(headings) + "|", *lines[1:]])


def made_with(document: dict[str, Any]) -> str:
    """Machine and versions, one line."""
    own = document.get("machine", document)
    known = own["versions"] | {name: peer["version"] for name, peer in own.get("peers", {}).items()}
    versions = ", ".join(f"{ENGINES.get(name, name)} {version}" for name, version in known.items())
    place = own.get("hardware", own)
    cpu = [str(place["processor"]), document.get("instruction_set") or own.get("instruction_set")]
    threads = document.get("threads") or own.get("threads")
    parts = [" ".join(part for part in cpu if part), f"{place['cores']} cores", f"{threads} threads" if threads else "", versions]
    return f"*{', '.join(part for part in parts if part)}.*"


def figure(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def costs() -> str:
    """Milliseconds of one pass, ours and llama.cpp's."""
    documents = [read("costs-smollm2"), read("costs-qwen2.5-coder-1.5b")]
    columns = [k for k in documents[0]["milliseconds"]["headstart"] if k != "32"]
    headings = ["", *(f"k = {k}" if k == "1" else k.replace("prompt512", "512-token prompt") for k in columns)]
    rows = []
    for document in documents:
        for engine, cells in document["milliseconds"].items():
            name = f"{MODELS[document['file']]}, {ENGINES[engine]}"
            rows.append([name, *(figure(cells[k]["median"]) for k in columns)])
    about = f"Medians of {documents[0]['n']}, after {documents[0]['context']} tokens of context."
    return f"{rows_of(headings, rows)}\n\n{about} {made_with(documents[0])}"


def draft() -> str:
    """A small model drafting for a larger one, ours and llama.cpp's."""
    document = read("speculation-qwen2.5-coder")
    headings = ["prompt", "llama.cpp", "llama.cpp with the draft", "Headstart", "Headstart with the draft", "against llama.cpp"]
    keys = ("llama.cpp plain", "llama.cpp draft", "headstart plain", "headstart draft")
    rows = []
    for prompt, cells in document["tokens_per_second"].items():
        values = [figure(cells[key]["median"]) if key in cells else "–" for key in keys]
        values[-1] = f"**{values[-1]}**"
        rows.append([prompt, *values, f"{cells['headstart draft / llama.cpp plain']['median']:.2f}×"])
    about = f"Tokens per second, greedy, {document['tokens']} tokens, medians of {document['n']} runs in turn. Ours: `--gamma "
    about += f"{document['gamma']}` `--drafter {document['drafter']}`"
    for option in ("draft_vocab", "draft_quantize"):
        if document.get(option):
            about += f" `--{option.replace('_', '-')} {document[option]}`"
    about += f"; llama.cpp's: {document['llama_gamma']} a round."
    return f"{rows_of(headings, rows)}\n\n{about} {made_with(document)}"


def generate() -> str:
    """Prompt lookup on smollm2."""
    document = read("generate-smollm2")
    headings = ["prompt", "plain tokens/s", "with speculation", "tokens per call", "speedup"]
    rows = [
        [
            name,
            figure(cells["plain_tokens_per_second"]),
            figure(cells["tokens_per_second"]),
            f"{cells['block_efficiency']:.2f}",
            f"{cells['speedup']:.2f}×",
        ]
        for name, cells in document["prompts"].items()
    ]
    about = (
        f"{document['drafter']}, `--gamma {document['gamma']}`, greedy, up to {document['tokens']} tokens, {document['repeats']} "
    )
    about += "paired runs: the speedup is their median, the other columns the last run's."
    return f"{rows_of(headings, rows)}\n\n{about} {made_with(document | document['loaded'])}"


def drafters() -> str:
    """Every drafter at its best length, greedy and at temperature 1."""
    document = read("drafters-smollm2")
    headings = ["drafter", "temperature", "length", "tokens per call", "tokens/s", "against plain", "against llama.cpp"]
    headings += ["against plain, without loops"]
    rows = []
    for row in document["results"]:
        if not row["best"]:
            continue
        whole = row["all"]
        length = "" if row["drafter"] in ("none", "llama.cpp") else row["length"]
        cells = [row["drafter"], f"{row['temperature']:g}", length, f"{whole['block_efficiency']['value']:.2f}"]
        cells += [figure(whole["tokens_per_second"]["value"])]
        cells += [_times(whole["over_plain"]), _times(whole["over_llama_cpp"]), _times(row["without_loops"]["over_plain"])]
        rows.append(cells)
    first = (
        "Every drafter on SmolLM2 at its best length, on chat prompts that no head was trained on. A loop is a span that repeats "
    )
    first += "what stands immediately before it. "
    first += "The Medusa heads and the model of two layers were trained for it, 8 and 9 minutes."
    about = f"{document['prompts']} prompts, up to {document['max_tokens']} tokens, 95 % intervals by prompt."
    return f"{first}\n\n{rows_of(headings, rows)}\n\n{about} {made_with(document)}"


def speed() -> str:
    """Headstart and other engines, category by category."""
    document = read("speed-smollm2")
    rows = []
    for temperature in dict.fromkeys(each["temperature"] for each in document["results"]):
        own = [each for each in document["results"] if each["temperature"] == temperature]
        categories = list(dict.fromkeys(each["category"] for each in own))
        for way in document["ways"]:
            cells = {each["category"]: each for each in own if each["way"] == way}
            line = [f"{cells[c]['speedup']:.2f}× ({figure(cells[c]['tokens_per_second'])})" for c in categories]
            rows.append([way, f"{temperature:g}", *line])
    headings = ["way", "temperature", *categories]
    settings = document["machine"]
    first = "SmolLM2 and the same file in other engines, taking turns: speed against our plain decoding and, in "
    first += "brackets, tokens per second."
    about = f"Up to {settings['max_tokens']} tokens, {settings['repeats']} answers a prompt."
    return f"{first}\n\n{rows_of(headings, rows)}\n\n{about} {made_with(document)}"


def auto() -> str:
    """Automatic lengths against plain decoding and against the best fixed length."""
    rows, documents = [], [read(name) for name in ("auto-smollm2", "auto-qwen2.5-coder-1.5b")]
    for document in documents:
        kinds = dict.fromkeys((each["drafter"], each["temperature"]) for each in document["results"])
        for drafter, temperature in kinds:
            own = [each for each in document["results"] if (each["drafter"], each["temperature"]) == (drafter, temperature)]
            cells = [f"{each['auto']:.2f} ({each['interval'][0]:.2f})" for each in own]
            rows.append(
                [
                    _short(document["target"]),
                    _short(drafter),
                    f"{temperature:g}",
                    *cells,
                    f"{min(e['against_best_fixed'] for e in own):.2f}",
                ]
            )
    first = (
        "Automatic lengths against plain decoding, side by side on the same prompts: the median by category and, in brackets, "
    )
    first += (
        "the lower 95 % bound. The last column, in the worst category, is against the best fixed length or none, chosen with "
    )
    first += "hindsight."
    headings = [
        "target",
        "drafter",
        "temperature",
        *dict.fromkeys(e["category"] for e in documents[0]["results"]),
        "against the best",
    ]
    sizes = [
        f"{d['prompts_of_a_category']} prompts a category, {d['n']} times, {d['max_tokens']} tokens ({_short(d['target'])})"
        for d in documents
    ]
    return f"{first}\n\n{rows_of(headings, rows)}\n\n{'; '.join(sizes)}. {made_with(documents[0])}"


def prediction() -> str:
    """What `plan` predicted beside what was then measured."""
    rows, documents = [], [read(name) for name in ("prediction-smollm2", "prediction-qwen2.5-coder-1.5b")]
    for document in documents:
        regrets = " and ".join(f"{each['regret']:.1%}" for each in document["choices"])
        worst = max(abs(each["error"]) for each in document["results"] if each["drafter"] != "none")
        cells = [f"{document['configurations']}", f"{document['median_absolute_error']:.1%}", f"{worst:.1%}", regrets]
        rows.append([_short(document["target"]), *cells])
    headings = ["target", "configurations", "median error", "largest error", "its choice slower than the fastest by"]
    about = (
        "Drafters and lengths at temperatures 0 and 1; tokens per second as `headstart plan` predicts them and as then measured."
    )
    return f"{rows_of(headings, rows)}\n\n{about} {made_with(documents[0])}"


def _short(name: str) -> str:
    """A reference without the ending that says how its numbers are held."""
    return name.removesuffix(".gguf").removesuffix("-instruct-q4_k_m")


def _times(cell: dict[str, Any] | None) -> str:
    return "–" if cell is None else f"{cell['value']:.2f}× ({cell['interval'][0]:.2f}–{cell['interval'][1]:.2f})"


TABLES: dict[str, Callable[[], str]] = {
    "costs": costs,
    "draft": draft,
    "generate": generate,
    "drafters": drafters,
    "speed": speed,
    "auto": auto,
    "prediction": prediction,
}
_BLOCK = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """`text` with every marked table as the results have it. Raises KeyError for a table nobody makes."""

    def block(match: re.Match[str]) -> str:
        try:
            return f"{match[1]}{TABLES[match[2]]()}\n{match[3]}"
        except FileNotFoundError:
            return match[0]

    return _BLOCK.sub(block, text)


def main() -> None:
    """Rewrite the file where it differs."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "README.md"
    text = file.read_text(encoding="utf-8")
    new = filled(text)
    file.write_text(new, encoding="utf-8")
    print(f"{file.name}: {'rewritten' if new != text else 'as the results have it'}", file=sys.stderr)


if __name__ == "__main__":
    main()
