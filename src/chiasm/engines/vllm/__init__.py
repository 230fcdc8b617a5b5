"""What loads inside unmodified vLLM, through its own plugin points.

`ec` is free of vLLM and torch: it decides and moves bytes. The modules beside it speak vLLM's interfaces.
"""
