"""vLLM servers: flags by role, starting, watching and ending them, or finding those that run already."""
