"""The resources and the contract between the parts. No I/O, no clock, nothing that imports operator or router."""
