"""Who used how much: requests and tokens by key, tenant, model and workflow, kept over restarts.

`tally` counts and `report` adds up; both are pure. `book` writes into the database that keeps runs of workflows.
No text of a request and no secret of a key may enter: a key is known by its id.
"""
