"""`tidepool-router load`: brings the files of a model to a folder, once, for whoever mounts it.

A room of its own beside the router: it runs in Jobs and init containers, never in a process that serves requests,
and it alone imports the clients of the hub and of object stores.
"""
