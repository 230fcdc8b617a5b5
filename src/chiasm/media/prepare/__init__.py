"""From an upright RGB picture to exactly the arrays that the model's Hugging Face image processor would give."""
