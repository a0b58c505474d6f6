"""Write a timeline as a Perfetto trace (protobuf track events), as Perfetto's UI and its trace processor read it."""
