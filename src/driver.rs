//! Owns the machines: receives inputs, calls `step`, passes effects to channels.

