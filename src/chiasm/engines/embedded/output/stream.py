"""One choice's output: what its tokens say, and when it ends."""

from chiasm.engines.embedded.output.detokenizer import detokenizer_for
from chiasm.engines.embedded.output.stops import StopMatcher
from chiasm.engines.embedded.prompt.pieces import TokenPieces
from chiasm.engines.embedded.prompt.tokenizer import ModelTokenizer
from chiasm.engines.embedded.sampling.sampler import SampledToken
from chiasm.errors import InvalidRequestError
from chiasm.protocol.generation import ChoiceFinished, SamplingParams, TokenEvent, TokenLogprob

# Zero probability as JSON can carry it.
_MIN_LOGPROB = -9999.0


class OutputStream:
    """Turns the sampled tokens of one choice into events. Not thread-safe; lives on the engine's thread."""

    def __init__(
        self,
        choice: int,
        params: SamplingParams,
        tokenizer: ModelTokenizer,
        eos_token_ids: frozenset[int],
    ) -> None:
        """Raises `InvalidRequestError` for an empty stop string."""
        if not all(params.stop):
            raise InvalidRequestError("A stop string is empty", hint="Leave it out", param="/stop")
        self._choice = choice
        self._pieces = tokenizer.pieces
        skipped = tokenizer.special_tokens if params.skip_special_tokens else frozenset[int]()
        self._detokenizer = detokenizer_for(tokenizer.backend, tokenizer.pieces, skipped)
        self._stops = StopMatcher(params.stop) if params.stop else None
        # A grammar lets EOS through only where its document may end, and often nothing else there.
        is_free = params.json_schema is None
        heeds_eos = not params.ignore_eos or not is_free
        self._eos_token_ids = eos_token_ids if heeds_eos else frozenset[int]()
        self._end_token_ids = self._eos_token_ids.union(params.stop_token_ids)
        self._min_tokens = params.min_tokens if is_free else 0
        self._max_tokens = params.max_tokens
        self._has_logprobs = params.num_top_logprobs is not None
        self.num_tokens = 0
        self.is_finished = False

    def push(self, sampled: SampledToken) -> list[TokenEvent | ChoiceFinished]:
        """Events of this token; the last one is `ChoiceFinished` when it ends the choice.

        Every token gives one `TokenEvent`, that of end-of-text included (its own text is never sent).
        """
        token_id = sampled.token_id
        self.num_tokens += 1
        may_stop = self.num_tokens > self._min_tokens
        if may_stop and token_id in self._end_token_ids:
            stop = None if token_id in self._eos_token_ids else token_id
            return self._finish(sampled, self._flush(), ChoiceFinished(self._choice, "stop", stop))
        text = self._detokenizer.push(token_id)
        if self._stops is not None and may_stop:
            text, matched = self._stops.push(text)
            if matched is not None:
                return self._finish(sampled, text, ChoiceFinished(self._choice, "stop", matched))
        if self.num_tokens == self._max_tokens:
            return self._finish(sampled, text + self._flush(), ChoiceFinished(self._choice, "length"))
        return [self._event(sampled, text)]

    def _flush(self) -> str:
        rest = self._detokenizer.flush()
        return rest if self._stops is None else self._stops.flush() + rest

    def _finish(self, sampled: SampledToken, text: str, end: ChoiceFinished) -> list[TokenEvent | ChoiceFinished]:
        self.is_finished = True
        return [self._event(sampled, text), end]

    def _event(self, sampled: SampledToken, text: str) -> TokenEvent:
        logprobs = (self._logprob(sampled),) if self._has_logprobs else None
        return TokenEvent(self._choice, text, (sampled.token_id,), logprobs)

    def _logprob(self, sampled: SampledToken) -> TokenLogprob:
        assert sampled.logprob is not None, "the sampler reports log probabilities when they are asked for"
        top = tuple(_entry(self._pieces, token_id, logprob) for token_id, logprob in sampled.top)
        return _entry(self._pieces, sampled.token_id, sampled.logprob, top)


def _entry(pieces: TokenPieces, token_id: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    piece = pieces[token_id]
    return TokenLogprob(token_id, piece.decode("utf-8", "replace"), piece, max(logprob, _MIN_LOGPROB), top)
