"""Two runs compared: how their conditions differ, how their budgets differ, and how sure that is."""
