"""What every suite shares. The hub is closed before any test can import transformers: no test may download."""

import os

from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

settings.register_profile("loaded machine", deadline=None)
settings.load_profile("loaded machine")
