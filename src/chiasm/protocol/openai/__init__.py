"""The OpenAI HTTP API as types: what is honoured, what is accepted without effect, what is refused.

Every name a caller can send falls into one of four classes, and none is dropped silently:

1. honoured: a field of the request types (`chat`, `completions`, `sampling`);
2. accepted without effect: bookkeeping of the caller's, listed in `fields.ACCEPTED`, type-checked;
3. refused with `unsupported_feature` unless at the value that asks for nothing: `fields.REFUSED`;
4. unknown: refused with `invalid_request` and the nearest known name.

Turning a checked request into work is the gateway's business.
"""
