"""The rules, one file each: RULE is the rule, the docstring its documentation."""
