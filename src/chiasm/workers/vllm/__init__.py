"""IO processors inside unmodified vLLM: the classes, the reading of inputs and the heads that the embedded engine has.

`requests` is free of vLLM. The modules beside it speak its plugin interface and are imported only there.
"""
