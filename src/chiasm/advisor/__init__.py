"""Should the encoder be split off, and into what? From measured stage costs and a description of the traffic.

The order is that of an engineer who would rather not: what takes the time, what fits, what the stages can bear, what
requests would feel. The answer may be that nothing should be split, or that the numbers do not tell.
"""
