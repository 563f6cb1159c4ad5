"""The data path: sockets in, sockets out. No decision may enter: ledger, pickers and queue are asked for it."""
