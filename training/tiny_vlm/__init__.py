"""Pictures, questions and the training of the packaged tiny vision-language model."""
