"""ClickHouse: the tables that the collector writes and the analysis reads, embedded (chDB) or on a server."""
