"""What work costs on which worker, learned from the spans that workers report."""
