"""The embedded engine: staged encode / prefill / decode on Hugging Face model definitions, one thread, CPU or one GPU.

`families/` knows model architectures, `decoder.py` computes packed tokens, `kv.py` holds KV slots, `core.py` runs
steps, `loop.py` owns the thread. What runs next is decided in `chiasm.scheduling`, what is cached in `chiasm.cache`.
"""
