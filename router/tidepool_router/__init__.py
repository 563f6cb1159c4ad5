"""The router: one program, two roles. Nothing of the operator may enter; what both know lives in tidepool_api."""
