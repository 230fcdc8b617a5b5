"""The stages of a request as the router sees them: calls to members, with their load counted and their cost learned."""
