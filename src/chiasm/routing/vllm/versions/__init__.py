"""What versions of vLLM do in their own way, one file each."""
