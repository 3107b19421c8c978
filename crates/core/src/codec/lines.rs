//! Watch body bytes → lines, with a cap on their length.
//!
//! The server ends each event with a newline; where the chunks of the body end means nothing.

use bytes::{Bytes, BytesMut};

/// Splits a body into lines, whatever its chunks are. A line within one chunk is a slice of it.
#[derive(Debug)]
pub struct Lines {
    line_bytes_max: usize,
    /// Begin of a line whose end has not come.
    partial: BytesMut,
    /// What is left of the newest chunk.
    chunk: Bytes,
}

/// A line is longer than allowed; the body cannot be read on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a line is longer than {line_bytes_max} bytes")]
pub struct LineTooLong {
    /// The cap.
    pub line_bytes_max: usize,
}

impl Lines {
    /// A splitter that refuses lines of more than `line_bytes_max` bytes (`limits::WATCH_LINE_BYTES_MAX`).
    pub fn new(line_bytes_max: usize) -> Self {
        Self { line_bytes_max, partial: BytesMut::new(), chunk: Bytes::new() }
    }

    /// Takes the next chunk of the body. Call [`Lines::next_line`] until it returns none before the next chunk.
    pub fn push(&mut self, chunk: Bytes) {
        if !self.chunk.is_empty() {
            // Nobody has asked for the lines of the chunk before; keep them in order.
            let mut joined = BytesMut::from(&self.chunk[..]);
            joined.extend_from_slice(&chunk);
            self.chunk = joined.freeze();
        } else {
            self.chunk = chunk;
        }
    }

    /// The next whole line, without its end (`\n` or `\r\n`); none when more bytes are needed. Skips empty lines.
    ///
    /// # Errors
    /// When the line exceeds the cap, even before its end has come.
    pub fn next_line(&mut self) -> Result<Option<Bytes>, LineTooLong> {
        while let Some(end) = memchr::memchr(b'\n', &self.chunk) {
            let piece = self.chunk.split_to(end + 1).slice(..end);
            self.check(piece.len())?;
            let line = if self.partial.is_empty() {
                piece
            } else {
                self.partial.extend_from_slice(&piece);
                self.partial.split().freeze()
            };
            let line = if line.ends_with(b"\r") { line.slice(..line.len() - 1) } else { line };
            if !line.is_empty() {
                return Ok(Some(line));
            }
        }
        self.check(self.chunk.len())?;
        self.partial.extend_from_slice(&self.chunk);
        self.chunk = Bytes::new();
        Ok(None)
    }

    /// What follows the last line end when the body is over; none when it ended with a line.
    pub fn rest(&mut self) -> Option<Bytes> {
        let rest = self.partial.split().freeze();
        (!rest.iter().all(u8::is_ascii_whitespace)).then_some(rest)
    }

    fn check(&self, more: usize) -> Result<(), LineTooLong> {
        if self.partial.len() + more > self.line_bytes_max {
            return Err(LineTooLong { line_bytes_max: self.line_bytes_max });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut lines = Lines::new(100);
        let mut found = Vec::new();
        for chunk in chunks {
            lines.push(Bytes::copy_from_slice(chunk));
            while let Some(line) = lines.next_line().unwrap() {
                found.push(line.to_vec());
            }
        }
        found
    }

    #[test]
    fn any_chunking_gives_the_same_lines() {
        let body = b"one\r\n\ntwo\n\r\nthree, longer\nfour without end";
        let whole = split(&[body]);
        assert_eq!(whole, [&b"one"[..], b"two", b"three, longer"]);
        for first in 0..body.len() {
            for second in first..body.len() {
                assert_eq!(split(&[&body[..first], &body[first..second], &body[second..]]), whole);
            }
        }
    }

    #[test]
    fn a_line_within_one_chunk_is_not_copied() {
        let chunk = Bytes::from_static(b"one\ntwo\n");
        let mut lines = Lines::new(100);
        lines.push(chunk.clone());
        let line = lines.next_line().unwrap().unwrap();
        assert_eq!(line.as_ptr(), chunk.as_ptr());
    }

    #[test]
    fn the_cap_holds_before_the_end_has_come() {
        let mut lines = Lines::new(5);
        lines.push(Bytes::from_static(b"12345\n123"));
        assert_eq!(lines.next_line().unwrap().unwrap(), "12345");
        assert_eq!(lines.next_line(), Ok(None));
        lines.push(Bytes::from_static(b"456"));
        assert_eq!(lines.next_line(), Err(LineTooLong { line_bytes_max: 5 }));
        let mut lines = Lines::new(5);
        lines.push(Bytes::from_static(b"123456\n"));
        assert!(lines.next_line().is_err());
    }

    #[test]
    fn the_rest_is_what_has_no_end() {
        let mut lines = Lines::new(100);
        lines.push(Bytes::from_static(b"one\ntw"));
        while lines.next_line().unwrap().is_some() {}
        assert_eq!(lines.rest().unwrap(), "tw");
        assert_eq!(lines.rest(), None);
    }
}
