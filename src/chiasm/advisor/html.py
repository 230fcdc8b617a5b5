"""The advice as one HTML page that needs nothing else."""

from collections.abc import Iterator
from html import escape

from chiasm.advisor.advice import Advice
from chiasm.advisor.page import comparisons, flip_lines
from chiasm.advisor.question import Question
from chiasm.simulator.report.page import charts, document, table


def html_of(question: Question, advice: Advice) -> str:
    """All of it, the advice first; charts and numbers of each fleet's first run."""
    return document(advice.headline, _body(question, advice))


def _body(question: Question, advice: Advice) -> Iterator[str]:
    runs = [trial.runs[0] for trial in advice.trials]
    yield "<ul>"
    yield from (f"<li>{escape(reason)}</li>" for reason in advice.reasons)
    yield from (f"<li>{escape(line)}</li>" for line in comparisons(question, advice))
    yield "</ul>"
    if advice.flips is not None:
        yield "<h2>What would change it</h2><ul>"
        yield from (f"<li>{escape(line)}</li>" for line in flip_lines(advice.flips))
        yield "</ul>"
    yield from charts(runs, question.objective)
    yield "<h2>Numbers</h2>"
    yield table(runs)
    bears = ", ".join(f"{name} {one.per_s:.2f} ({one.binding})" for name, one in advice.capacities.items())
    yield f'<p class="dim">Requests a second that the stages bear, and which binds: {escape(bears)}.</p>'
