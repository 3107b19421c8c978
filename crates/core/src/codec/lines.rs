//! Watch body bytes → lines, with a cap on their length.
