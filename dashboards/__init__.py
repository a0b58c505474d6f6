"""Dashboards and alerts as code: one function per panel, queries from one configuration, built files checked in."""
