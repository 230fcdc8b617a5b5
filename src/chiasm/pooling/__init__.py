"""Poolers, heads, scorers and IO processors, as far as they are arithmetic on arrays and text. Knows no torch.

Decides what a model directory's files say about pooling, how numbers become answers (cut, normalised, calibrated,
activated, ranked), which inputs share a batch, and how a processor's request state lives and ends. The models run in
`chiasm.engines.pooling`.
"""
