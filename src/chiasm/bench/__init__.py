"""Load and its measurement: what is sent when, what came back when, and what that comes to.

Speaks HTTP to any server with an OpenAI API and knows nothing of how Chiasm serves; what Chiasm says about itself in
its answers (receipts) is used where it is there. A cell is one load on one server: a plan that is on disk before the
first request leaves, client processes that keep to it, and a summary that says when it is not to be believed.
"""
