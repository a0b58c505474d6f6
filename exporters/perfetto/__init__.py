"""Write a timeline as a Perfetto trace (protobuf track events), as ui.perfetto.dev and the trace processor read it."""
