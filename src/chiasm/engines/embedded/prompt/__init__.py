"""From a request's prompt to token ids: tokenizer, chat template, special-token safety, placement of pictures.

Needs a model directory but no weights, so a prompt can be planned on any worker. Fetching and preparing pictures is
`chiasm.media`'s business; what a placeholder expands to is the family's.
"""
