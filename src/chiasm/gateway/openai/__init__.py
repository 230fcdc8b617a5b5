"""Between the OpenAI API and the worker contract: requests to plans, events to responses. Pure; awaits nothing."""
