"""Re-use of earlier turns' KV (bidirectional): readback, decisions, leases, conversations; pure transforms."""
