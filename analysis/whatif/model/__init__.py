"""The event model: engines that step, requests that pass them, transfers between; named after the segments."""
