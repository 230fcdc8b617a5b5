"""Stage costs: learned in `CostModel`, handed to policies as `StageCosts`, which never changes under their hands."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

import msgspec

from chiasm.observability.receipt import ACTUAL, EXPECTED
from chiasm.routing.costs.line import Coefficients, Line
from chiasm.routing.costs.trials import Trials
from chiasm.routing.lru import Lru

TYPICAL_PIXELS = 448.0 * 448.0
TYPICAL_TOKENS = 256.0
TYPICAL_CHARS = 400.0
_TYPICAL_RUNNING = 4.0
_KEPT = 0.95
_MAX_WORKERS = 256
_MEASURED_SEEN = 5.0
"""Observations that a measured prior counts as: more than a first request, which may find everything cold."""
_SLOW = 1.25
"""How many times as long as on average a worker takes that is called slow."""
_LOOK_EVERY_S = 1.0
"""How often it is looked for workers to be tried again."""

PRIOR_ENCODE = Coefficients(0.004, 0.03 / TYPICAL_PIXELS)
PRIOR_PREFILL = Coefficients(0.004, 0.02 / TYPICAL_TOKENS)
PRIOR_STEP = Coefficients(0.004, 0.001)
PRIOR_HOP_S = 0.002
PRIOR_TAKE_S = 0.001
PRIOR_OUTPUT_TOKENS = 64.0
PRIOR_TEXT_PREFILL_S = 0.02
PRIOR_TOKENS_OF_CHARS = Coefficients(8.0, 0.25)
PRIOR_TOKENS_OF_PIXELS = Coefficients(0.0, 1.0 / 784.0)


class StageCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What stages are predicted to cost. Workers that are not named cost what the fleet costs on average.

    Attributes:
        encode: Bytes of a picture to its embedding, by worker; units are pixels.
        prefill: Prompt to first token, by worker; units are tokens that no cache covers.
        step: One decode step; units are running generations.
        hop_s: A call for embeddings, besides the work that it asks for.
        take_s: Taking over the embeddings of a prompt from other workers.
        output_tokens: Length of an answer, on average.
        text_prefill_s: Computing the prompt of a request without pictures, on average.
        hoped: Workers whose line in `encode` is no prediction but a hope: they were slow, long ago.
    """

    encode: Mapping[str, Coefficients] = {}
    encode_any: Coefficients = PRIOR_ENCODE
    prefill: Mapping[str, Coefficients] = {}
    prefill_any: Coefficients = PRIOR_PREFILL
    step: Coefficients = PRIOR_STEP
    hop_s: float = PRIOR_HOP_S
    take_s: float = PRIOR_TAKE_S
    output_tokens: float = PRIOR_OUTPUT_TOKENS
    text_prefill_s: float = PRIOR_TEXT_PREFILL_S
    tokens_of_chars: Coefficients = PRIOR_TOKENS_OF_CHARS
    tokens_of_pixels: Coefficients = PRIOR_TOKENS_OF_PIXELS
    hoped: frozenset[str] = frozenset()

    def encode_line(self, worker: str) -> Coefficients:
        """What encoding costs at a worker; units are pixels."""
        return self.encode.get(worker, self.encode_any)

    def encode_s(self, worker: str, num_pixels: int) -> float:
        """Seconds to encode a picture."""
        return self.encode_line(worker).at(num_pixels)

    def prefill_s(self, worker: str, num_tokens: float) -> float:
        """Seconds to compute a prompt."""
        return self.prefill.get(worker, self.prefill_any).at(num_tokens)

    def num_tokens(self, num_chars: int, pixels: Iterable[int]) -> float:
        """Tokens of a prompt, estimated without a tokenizer."""
        return self.tokens_of_chars.at(num_chars) + sum(self.tokens_of_pixels.at(one) for one in pixels)


class CostModel:
    """Learns stage costs from what requests turn out to cost.

    Attributes:
        totals: Seconds that stages took, and those that were expected of the same work before it was learned from.
    """

    def __init__(self, measured: StageCosts | None = None, retry_slow_s: float = 0.0) -> None:
        """Start from what was measured, or else from what is made up, which the first request outweighs.

        Workers that encoded slowly are tried again after `retry_slow_s`; 0: they are not.
        """
        prior = measured or StageCosts()
        self._prior_seen = seen = 0.0 if measured is None else _MEASURED_SEEN
        self._encode: Lru[Line] = Lru(_MAX_WORKERS)
        self._encode_any = Line(prior.encode_any, TYPICAL_PIXELS, seen)
        self._prefill: Lru[Line] = Lru(_MAX_WORKERS)
        self._prefill_any = Line(prior.prefill_any, TYPICAL_TOKENS, seen)
        self._step = Line(prior.step, _TYPICAL_RUNNING, seen)
        self._text = Line(prior.tokens_of_chars, TYPICAL_CHARS)
        self._pictures = Line(prior.tokens_of_pixels, TYPICAL_PIXELS)
        self._hop_s = prior.hop_s
        self._take_s = prior.take_s
        self._output_tokens = prior.output_tokens
        self._text_prefill_s = prior.text_prefill_s
        self._costs: StageCosts | None = None
        self._trials = Trials(retry_slow_s, _MAX_WORKERS)
        self._hopes: dict[str, Coefficients] = {}
        self._hopes_until_s = 0.0
        self.totals: dict[str, float] = defaultdict(float)

    def costs(self) -> StageCosts:
        """What is known now."""
        if self._costs is None:
            self._costs = StageCosts(
                encode={name: line.coefficients() for name, line in self._encode.items()},
                encode_any=self._encode_any.coefficients(),
                prefill={name: line.coefficients() for name, line in self._prefill.items()},
                prefill_any=self._prefill_any.coefficients(),
                step=self._step.coefficients(),
                hop_s=self._hop_s,
                take_s=self._take_s,
                output_tokens=self._output_tokens,
                text_prefill_s=self._text_prefill_s,
                tokens_of_chars=self._text.coefficients(),
                tokens_of_pixels=self._pictures.coefficients(),
            )
        return self._costs

    def hopes(self, now_s: float) -> Mapping[str, Coefficients]:
        """What encoding may cost by now at workers that are slower than the fleet, as far as is known from long ago."""
        if now_s >= self._hopes_until_s:
            self._hopes_until_s = now_s + _LOOK_EVERY_S
            due = self._trials.hopes(self._encode_any.coefficients(), now_s)
            self._hopes = {name: line for name, line in due if self._is_slow(name)}
        return self._hopes

    def see_encode(self, worker: str, num_items: int, num_pixels: int, seconds: float, now_s: float = 0.0) -> None:
        """Some pictures were encoded in one go, until now; each is taken to have cost its share."""
        each = (worker, num_pixels / num_items, seconds / num_items)
        self._hopes.pop(worker, None)
        if self._trials.is_due(worker, now_s) and self._is_slow(worker):
            self._encode.pop(worker)  # what it was is over, for better or worse
        expected_s = self._see(self._encode, self._encode_any, TYPICAL_PIXELS, each)
        self._trials.see(worker, now_s, is_slow=self._is_slow(worker))
        self._compare("encode", num_items * expected_s, seconds)

    def see_prefill(self, worker: str, num_tokens: int, seconds: float) -> None:
        """A prompt was computed, all but what a cache covered."""
        expected_s = self._see(self._prefill, self._prefill_any, TYPICAL_TOKENS, (worker, num_tokens, seconds))
        self._compare("prefill", expected_s, seconds)

    def see_text_prefill(self, seconds: float) -> None:
        """A prompt without pictures was computed."""
        self._text_prefill_s = _KEPT * self._text_prefill_s + (1 - _KEPT) * seconds
        self._costs = None

    def see_step(self, num_running: int, seconds: float) -> None:
        """A generation's tokens took this long each while so many ran."""
        self._compare("step", self._step.coefficients().at(num_running), seconds)
        self._step.see(num_running, seconds)
        self._costs = None

    def see_output(self, num_tokens: int) -> None:
        """A generation came to so many tokens."""
        self._output_tokens = _KEPT * self._output_tokens + (1 - _KEPT) * num_tokens
        self._costs = None

    def see_hop(self, seconds: float) -> None:
        """A call for embeddings took this much longer than the work it asked for."""
        self._compare("hop", self._hop_s, seconds)
        self._hop_s = _KEPT * self._hop_s + (1 - _KEPT) * seconds
        self._costs = None

    def see_take(self, seconds: float) -> None:
        """A prompt's embeddings took this long to come from other workers."""
        self._compare("take", self._take_s, seconds)
        self._take_s = _KEPT * self._take_s + (1 - _KEPT) * seconds
        self._costs = None

    def see_text(self, num_chars: int, num_tokens: int) -> None:
        """A prompt's text, with all that the template adds, came to so many tokens."""
        self._text.see(num_chars, num_tokens)
        self._costs = None

    def see_picture(self, num_pixels: int, num_embeddings: int) -> None:
        """A picture came to so many visual tokens."""
        self._pictures.see(num_pixels, num_embeddings)
        self._costs = None

    def _is_slow(self, worker: str) -> bool:
        line = self._encode.peek(worker)
        average_s = self._encode_any.coefficients().at(TYPICAL_PIXELS)
        return line is not None and line.coefficients().at(TYPICAL_PIXELS) > _SLOW * average_s

    def _compare(self, stage: str, expected_s: float, actual_s: float) -> None:
        self.totals[f"{EXPECTED}{stage}"] += expected_s
        self.totals[f"{ACTUAL}{stage}"] += actual_s

    def _see(self, lines: Lru[Line], everyone: Line, usual_units: float, seen: tuple[str, float, float]) -> float:
        """Learn from what a worker did. Returns what was expected of it until now."""
        worker, units, seconds = seen
        line = lines.get(worker)
        if line is None:
            line = Line(everyone.coefficients(), usual_units, self._prior_seen)
            lines.put(worker, line)
        expected_s = line.coefficients().at(units)
        line.see(units, seconds)
        everyone.see(units, seconds)
        self._costs = None
        return expected_s
