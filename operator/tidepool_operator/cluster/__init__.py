"""Everything that speaks to the API server or to pods. No decision about a pool may enter: pool/ makes those."""
