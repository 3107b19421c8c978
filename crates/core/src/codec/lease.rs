//! Lease JSON ↔ the fields that the election reads and writes.
