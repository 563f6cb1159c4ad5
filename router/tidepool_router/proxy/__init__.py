"""The data path: sockets in, sockets out. No decision is made here: it asks the ledger, the pickers and the queue."""
