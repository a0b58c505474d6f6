"""Critical paths: what first tokens waited for, how much each segment cost, and what makes slow ones slow."""
