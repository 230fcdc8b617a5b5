"""Vision towers over patches: what the Qwen-VL families encode pictures with."""
