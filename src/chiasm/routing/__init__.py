"""Which workers there are, which of them a request goes to, and what happens when one fails it."""
