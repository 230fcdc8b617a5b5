"""A grid's report: its data, and the same as a page, as Markdown and as heat maps."""
