"""HTTP/1.1 for ASGI applications, on httptools: bodies are received where they stay, answers leave in one write.

uvicorn's server runs it. Framing is llhttp's business; what is decided here is how much is read and kept, and when.
"""
