"""The page that people look at: read-only, and nothing is worked out while nobody looks. No write of any kind."""
