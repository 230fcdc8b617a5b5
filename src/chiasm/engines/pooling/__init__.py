"""Encoders and decoders that pool instead of generating, on this machine, in torch.

Model definitions come from transformers. Ours is what keeps padding out of them: the texts of a batch lie end to end
in one row, attention looks at one stretch of it at a time, and poolers find theirs by cumulative lengths.
"""
