"""Media from a request's reference to checked pixels: fetch, limits, identity, decoding, exact preparation.

Free of torch and of Hugging Face processors, so that the gateway and the command line can use all of it.
"""
