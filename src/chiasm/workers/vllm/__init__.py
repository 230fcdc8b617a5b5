"""IO processors inside unmodified vLLM: the classes, the reading of inputs and the heads that the embedded engine has.

`requests`, `pictures`, `ahead` and `middleware` are free of vLLM. The modules beside them speak its plugin interface
and are imported only there.
"""
