"""What `make demo` shows: one model, two prompts, with and without speculation, and whether the text stayed the same.

Run it from an installed checkout: python examples/demo.py
"""

from __future__ import annotations

import sys

import headstart
from headstart.cli.view import Loading, draft_view, summary
from headstart.comparison import compare

CODE = """def area(width, height):
    return width * height

def perimeter(width, height):
    return 2 * (width + height)

def describe(width, height):
    print("area", area(width, height))
    print("perimeter", perimeter(width, height))
"""

PROMPTS = [
    f"Copy this code and add a docstring to each function:\n\n{CODE}",
    "Write an HTML table with the columns name, age and city and five rows of example data.",
]


def main() -> None:
    """Generate each prompt twice and print the gain."""
    with Loading() as progress:
        llm = headstart.load("smollm2", drafter="ngram", progress=progress)
        progress("warming up", None)
        llm.generate("Hello", max_tokens=8)
        llm.with_drafter(headstart.NoDrafter()).generate("Hello", max_tokens=8)
    how = f"{llm.loaded['dtype']} weights, {llm.loaded['instruction_set']} kernels, {llm.loaded['threads']} threads"
    print(f"SmolLM2-135M on the {llm.engine} engine ({how}); drafts by looking up repeated text\n")
    for prompt in PROMPTS:
        print(f"› {prompt}\n")
        stream, view = llm.stream(prompt, max_tokens=160, temperature=0), draft_view(sys.stdout, marked=True)
        for step in stream.steps():
            view.show(step)
        view.end()
        print("\n".join([view.legend or "", *summary(stream.output, compare(llm, stream.output, prompt))]) + "\n")
    print("Next: headstart generate 'your prompt' --show-draft --compare, or headstart theory walltime")


if __name__ == "__main__":
    main()
