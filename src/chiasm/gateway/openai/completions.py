"""Text completions: one or several raw prompts, no template, no media."""

from chiasm.errors import InvalidRequestError
from chiasm.gateway.openai.completion_writer import CompletionWriter
from chiasm.gateway.openai.plan import Heading, Plan, check_choices, has_usage_chunk
from chiasm.protocol.generation import TextPrompt, TokensPrompt
from chiasm.protocol.openai.completions import NESTED_NAMES, CompletionRequest
from chiasm.protocol.openai.decode import decode_request
from chiasm.protocol.openai.fields import COMPLETION_POLICY
from chiasm.protocol.openai.sampling import sampling_params


class CompletionDialect:
    """`POST /v1/completions`."""

    name = "completions"
    id_prefix = "cmpl"

    def plan(self, body: bytes) -> Plan:
        """Check a body. Raises `RequestError`."""
        request = decode_request(body, CompletionRequest, COMPLETION_POLICY, NESTED_NAMES)
        sampling = sampling_params(request, max_tokens=request.max_tokens, num_top_logprobs=request.logprobs)
        prompts = _prompts(request.prompt)
        check_choices(len(prompts), sampling)
        options = request.chiasm
        return Plan(
            model=request.model,
            prompts=prompts,
            sampling=sampling,
            is_stream=bool(request.stream),
            has_usage_chunk=has_usage_chunk(request),
            wants_receipt=options is not None and options.receipt,
            timeout_s=options.timeout_s if options else None,
        )

    def writer(self, heading: Heading, plan: Plan) -> CompletionWriter:
        """Write responses for one request."""
        return CompletionWriter(heading, plan.num_choices, plan.has_usage_chunk)


def _prompts(prompt: str | list[str | int | list[int]]) -> tuple[TextPrompt | TokensPrompt, ...]:
    if isinstance(prompt, str):
        return (TextPrompt(prompt),)
    texts = [entry for entry in prompt if isinstance(entry, str)]
    token_ids = [entry for entry in prompt if isinstance(entry, int)]
    token_lists = [entry for entry in prompt if isinstance(entry, list)]
    if len(prompt) not in (len(texts), len(token_ids), len(token_lists)):
        raise InvalidRequestError(
            "The prompt mixes texts and token ids", hint="Send texts only, or token ids only", param="/prompt"
        )
    if texts:
        return tuple(TextPrompt(text) for text in texts)
    return (_tokens(token_ids),) if token_ids else tuple(_tokens(entry) for entry in token_lists)


def _tokens(token_ids: list[int]) -> TokensPrompt:
    if not token_ids:
        raise InvalidRequestError("A prompt without tokens", param="/prompt")
    return TokensPrompt(tuple(token_ids))
