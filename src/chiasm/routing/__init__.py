"""Which workers there are, which way a request goes through them, and what happens when one fails it.

No arithmetic, no HTTP, and no time but that of a clock handed in: the same objects serve requests and are simulated.

- `router`: a fleet that looks like one worker; `journey` is one request's way, `fan_out` its pictures' way to encoders,
  `passage` its calls for prefill and decode, `stages` the calls themselves.
- `recovery`: what may still be tried after a failure, and for how long.
- `fleet`, `member`, `health`: who belongs, what each has under way, who is well.
- `coverage`: which worker computed which start of a prompt, where embeddings are.
- `policies`: how a way is chosen, a pure function from `view` to `plan`; `costs` and `prediction` are what it weighs.
- `remote`: workers of other processes.
"""
