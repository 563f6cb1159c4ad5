"""A pool's demand played again against policies. No clock, no cluster; reads the files that it is given."""
