"""Everything that is asked with GET: models, health, versions, metrics, receipts, the API's schema."""
