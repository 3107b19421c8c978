//! The cursor: a position of every feed, as the text a client keeps (C.3).
