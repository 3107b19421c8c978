//! Makes HTTP/2 from stock clients over a Unix socket acceptable: grpc-core and grpc-java (and others, depending on
//! how they dial) send the path of the socket as `:authority`, which the HTTP stack refuses as malformed before any
//! service sees the call. No option of client stubs or of the server's libraries changes that.
//!
//! [`AuthorityShim`] lies between socket and HTTP/2 and overwrites the offending characters of the `:authority`
//! *literal* in place. It never changes a length: a raw string is changed byte by byte, and in a Huffman string a
//! symbol is replaced by a permitted one whose code has as many bits. So frames stay whole, and so do the dynamic
//! tables of both ends: entry sizes are equal, and a later indexed reference finds the cleaned value. That is why no
//! HPACK state is needed here.
//!
//! Only values that would be refused are touched. What is not understood passes as it came, and HTTP/2 judges it.
//! CONTINUATION frames are not looked into: pseudo-headers come first.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use http::uri::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A byte stream whose incoming HTTP/2 headers have a well-formed `:authority`.
#[derive(Debug)]
pub struct AuthorityShim<S> {
    io: S,
    scanner: Scanner,
    /// Read, and waiting for the rest of its frame; bounded by [`HEADERS_BYTES_MAX`].
    held: BytesMut,
    /// Cleaned, and waiting for room in the reader's buffer.
    ready: BytesMut,
}

impl<S> AuthorityShim<S> {
    /// Wraps an accepted connection that has not been read from.
    pub fn new(io: S) -> Self {
        Self { io, scanner: Scanner::Preface { seen: 0 }, held: BytesMut::new(), ready: BytesMut::new() }
    }
}

/// Bytes read at once while a frame is incomplete.
const READ_BYTES: usize = 4096;

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityShim<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let shim = self.get_mut();
        loop {
            if !shim.ready.is_empty() {
                let taken = shim.ready.len().min(buf.remaining());
                buf.put_slice(&shim.ready[..taken]);
                shim.ready.advance(taken);
                return Poll::Ready(Ok(()));
            }
            if shim.held.is_empty() {
                // The usual case: what is read stays in the caller's buffer.
                let start = buf.filled().len();
                ready!(Pin::new(&mut shim.io).poll_read(cx, buf))?;
                let fresh = &mut buf.filled_mut()[start..];
                if fresh.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                let clean = shim.scanner.scan(fresh);
                shim.held.extend_from_slice(&fresh[clean..]);
                buf.set_filled(start + clean);
                // An empty answer would mean the end of the stream.
                if clean > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                let mut space = [MaybeUninit::<u8>::uninit(); READ_BYTES];
                let mut fresh = ReadBuf::uninit(&mut space);
                ready!(Pin::new(&mut shim.io).poll_read(cx, &mut fresh))?;
                let ended = fresh.filled().is_empty();
                shim.held.extend_from_slice(fresh.filled());
                let clean = if ended { shim.held.len() } else { shim.scanner.scan(&mut shim.held) };
                shim.ready = shim.held.split_to(clean);
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityShim<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

impl<S: Connected> Connected for AuthorityShim<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.io.connect_info()
    }
}

/// What a client of HTTP/2 sends first (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, type, flags and stream of a frame (RFC 9113, 4.1).
const FRAME_HEAD_BYTES: usize = 9;
/// A longer HEADERS frame is not held back: the server never allows more than 16 KiB.
const HEADERS_BYTES_MAX: usize = 64 << 10;
/// Frame type HEADERS, and its flags that put something around the block (RFC 9113, 6.2).
const HEADERS: u8 = 0x1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Where in the connection's bytes the scan is.
#[derive(Debug)]
enum Scanner {
    /// Before the first frame.
    Preface {
        /// Bytes of the preface that have passed.
        seen: usize,
    },
    /// Between frames.
    Frames,
    /// Within a frame of no interest.
    Skipping {
        /// Bytes of it that are still to come.
        left: usize,
    },
    /// This is not what the shim understands: everything passes.
    Off,
}

impl Scanner {
    /// Cleans `bytes` in place and returns how many of them may pass. The rest is the beginning of a HEADERS frame
    /// and must come again, in front of the bytes that follow.
    fn scan(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self {
                Self::Off => return bytes.len(),
                Self::Preface { seen } => {
                    if bytes[at] != PREFACE[*seen] {
                        *self = Self::Off;
                        continue;
                    }
                    at += 1;
                    *seen += 1;
                    if *seen == PREFACE.len() {
                        *self = Self::Frames;
                    }
                }
                Self::Skipping { left } => {
                    let passed = (*left).min(bytes.len() - at);
                    at += passed;
                    *left -= passed;
                    if *left == 0 {
                        *self = Self::Frames;
                    }
                }
                Self::Frames => {
                    let Some((head, rest)) = bytes[at..].split_at_mut_checked(FRAME_HEAD_BYTES) else { return at };
                    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
                    if head[3] != HEADERS || length > HEADERS_BYTES_MAX {
                        at += FRAME_HEAD_BYTES;
                        if length > 0 {
                            *self = Self::Skipping { left: length };
                        }
                        continue;
                    }
                    let Some(payload) = rest.get_mut(..length) else { return at };
                    if let Some(block) = header_block(payload, head[4]) {
                        clean_block(block);
                    }
                    at += FRAME_HEAD_BYTES + length;
                }
            }
        }
        bytes.len()
    }
}

/// The header block within the payload of a HEADERS frame; none when the frame contradicts itself.
fn header_block(payload: &mut [u8], flags: u8) -> Option<&mut [u8]> {
    let (mut start, mut end) = (0, payload.len());
    if flags & PADDED != 0 {
        end = end.checked_sub(usize::from(*payload.first()?))?;
        start += 1;
    }
    if flags & PRIORITY != 0 {
        start += 5;
    }
    payload.get_mut(start..end)
}

/// `:authority` raw, and in Huffman code. Its index in the static table is 1 (RFC 7541, appendix A).
const AUTHORITY_NAME: &[u8] = b":authority";
const AUTHORITY_NAME_HUFFMAN: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
const AUTHORITY_INDEX: usize = 1;

/// Cleans every `:authority` of a header block, as far as the block can be read.
fn clean_block(block: &mut [u8]) {
    let mut reader = Reader { block, at: 0 };
    while reader.at < reader.block.len() {
        let Some(field) = reader.field() else { return };
        if let Some(Text { huffman, range }) = field {
            let value = &mut reader.block[range];
            if huffman { clean_huffman(value) } else { clean_raw(value) }
        }
    }
}

/// Reads the representations of RFC 7541, section 6. None where the block is cut or malformed.
struct Reader<'a> {
    block: &'a mut [u8],
    at: usize,
}

/// A string literal: its coding and where its bytes are.
struct Text {
    huffman: bool,
    range: Range<usize>,
}

impl Reader<'_> {
    /// Passes one representation. Returns the value if it is a literal `:authority`.
    fn field(&mut self) -> Option<Option<Text>> {
        let first = *self.block.get(self.at)?;
        let name_bits = match first {
            // Indexed: name and value come from a table.
            0x80.. => return self.number(7).map(|_| None),
            // Literal that enters the dynamic table.
            0x40..=0x7f => 6,
            // New size of the dynamic table.
            0x20..=0x3f => return self.number(5).map(|_| None),
            // Literal that does not enter the table, or must never.
            0x00..=0x1f => 4,
        };
        let is_authority = match self.number(name_bits)? {
            0 => {
                let Text { huffman, range } = self.text()?;
                &self.block[range] == if huffman { AUTHORITY_NAME_HUFFMAN } else { AUTHORITY_NAME }
            }
            index => index == AUTHORITY_INDEX,
        };
        let value = self.text()?;
        Some(is_authority.then_some(value))
    }

    /// An integer whose prefix has this many bits (RFC 7541, 5.1).
    fn number(&mut self, prefix_bits: u32) -> Option<usize> {
        let prefix_max = (1 << prefix_bits) - 1;
        let mut number = usize::from(self.byte()?) & prefix_max;
        if number < prefix_max {
            return Some(number);
        }
        // Four more bytes are 28 bits: far beyond any frame.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A string literal (RFC 7541, 5.2).
    fn text(&mut self) -> Option<Text> {
        let huffman = *self.block.get(self.at)? & 0x80 != 0;
        let length = self.number(7)?;
        let range = self.at..self.at.checked_add(length)?;
        self.at = range.end;
        (range.end <= self.block.len()).then_some(Text { huffman, range })
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.block.get(self.at)?;
        self.at += 1;
        Some(byte)
    }
}

/// What replaces a byte that an authority may not have.
const SUBSTITUTE: u8 = b'-';

fn clean_raw(value: &mut [u8]) {
    if Authority::try_from(&*value).is_err() {
        value.iter_mut().filter(|byte| !is_unreserved(**byte)).for_each(|byte| *byte = SUBSTITUTE);
    }
}

fn clean_huffman(value: &mut [u8]) {
    let Some(symbols) = huffman::decode(value) else { return };
    let plain: Vec<u8> = symbols.iter().map(|symbol| symbol.byte).collect();
    if Authority::try_from(plain.as_slice()).is_err() {
        for symbol in symbols.iter().filter(|symbol| !is_unreserved(symbol.byte)) {
            huffman::substitute(value, symbol);
        }
    }
}

/// Characters that may stand anywhere in an authority (RFC 3986, 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// The Huffman code of RFC 7541, appendix B. It is canonical: the lengths determine it.
mod huffman {
    /// Bits of each byte's code.
    #[rustfmt::skip]
    const BITS: [u8; 256] = [
        13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
        28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
         6, 10, 10, 12, 13,  6,  8, 11, 10, 10,  8, 11,  8,  6,  6,  6,
         5,  5,  5,  6,  6,  6,  6,  6,  6,  6,  7,  8, 15,  6, 12, 10,
        13,  6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
         7,  7,  7,  7,  7,  7,  7,  7,  8,  7,  8, 13, 19, 13, 14,  6,
        15,  5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,
         6,  7,  6,  5,  5,  6,  7,  7,  7,  7,  7, 15, 11, 14, 13, 28,
        20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
        24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
        22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
        21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
        26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
        19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
        20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
        26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    ];
    /// The longest code.
    const BITS_MAX: usize = 30;

    struct Table {
        /// Code of each byte.
        code: [u32; 256],
        /// Bytes by length of their code, then by code.
        order: [u8; 256],
        /// First code of each length.
        first: [u32; BITS_MAX + 1],
        /// Where each length begins in `order`; it ends where the next one begins.
        start: [usize; BITS_MAX + 2],
    }

    static TABLE: Table = Table::new();

    impl Table {
        const fn new() -> Self {
            let mut table =
                Self { code: [0; 256], order: [0; 256], first: [0; BITS_MAX + 1], start: [0; BITS_MAX + 2] };
            let (mut code, mut place, mut bits) = (0, 0, 1);
            while bits <= BITS_MAX {
                code <<= 1;
                table.first[bits] = code;
                table.start[bits] = place;
                let mut byte = 0;
                while byte < 256 {
                    if BITS[byte] as usize == bits {
                        table.order[place] = byte as u8;
                        table.code[byte] = code;
                        place += 1;
                        code += 1;
                    }
                    byte += 1;
                }
                bits += 1;
            }
            table.start[bits] = place;
            table
        }

        /// The byte with this code.
        fn byte(&self, code: u32, bits: usize) -> Option<u8> {
            let place = self.start[bits] + code.checked_sub(self.first[bits])? as usize;
            self.order[..self.start[bits + 1]].get(place).copied()
        }
    }

    /// One symbol of a coded string.
    pub(super) struct Symbol {
        /// First bit of its code within the string.
        pub(super) bit: usize,
        /// What it stands for.
        pub(super) byte: u8,
    }

    /// The symbols of a coded string; none when it is not one.
    pub(super) fn decode(value: &[u8]) -> Option<Vec<Symbol>> {
        let end = value.len() * 8;
        let mut symbols = Vec::with_capacity(value.len() * 8 / 5);
        let (mut start, mut code) = (0, 0_u32);
        for at in 0..end {
            code = code << 1 | u32::from(value[at / 8] >> (7 - at % 8) & 1);
            let bits = at + 1 - start;
            if bits > BITS_MAX {
                return None;
            }
            if let Some(byte) = TABLE.byte(code, bits) {
                symbols.push(Symbol { bit: start, byte });
                (start, code) = (at + 1, 0);
            }
        }
        // Padding is less than a byte of ones.
        let padding = end - start;
        (padding < 8 && code == (1 << padding) - 1).then_some(symbols)
    }

    /// Overwrites a symbol with a permitted one whose code is as long. Where there is none (`#`, `<`, `>`, `\`, `^`,
    /// `` ` ``, braces, what is not ASCII), it stays.
    pub(super) fn substitute(value: &mut [u8], symbol: &Symbol) {
        let bits = BITS[usize::from(symbol.byte)];
        let substitute = match bits {
            6 => super::SUBSTITUTE,
            7 => b'x',
            8 => b'X',
            10 => b'!',
            11 => b'+',
            13 => b'~',
            _ => return,
        };
        let code = TABLE.code[usize::from(substitute)];
        for place in 0..usize::from(bits) {
            let at = symbol.bit + place;
            let mask = 0x80 >> (at % 8);
            if code >> (usize::from(bits) - 1 - place) & 1 == 1 {
                value[at / 8] |= mask;
            } else {
                value[at / 8] &= !mask;
            }
        }
    }

    /// The coded form of `plain`.
    #[cfg(test)]
    pub(super) fn encode(plain: &[u8]) -> Vec<u8> {
        let mut bits: Vec<bool> = Vec::new();
        for byte in plain {
            let (code, length) = (TABLE.code[usize::from(*byte)], BITS[usize::from(*byte)]);
            bits.extend((0..length).rev().map(|place| code >> place & 1 == 1));
        }
        bits.chunks(8)
            .map(|byte| (0..8).fold(0, |value, place| value << 1 | u8::from(*byte.get(place).unwrap_or(&true))))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// How a string is put on the wire.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Coding {
        Raw,
        Huffman,
    }

    /// How the name `:authority` is put on the wire.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Name {
        Indexed,
        Literal(Coding),
    }

    const NAMES: [Name; 3] = [Name::Indexed, Name::Literal(Coding::Raw), Name::Literal(Coding::Huffman)];

    /// An HPACK encoder that does what it is told. The tests against `h2` prove that it speaks HPACK.
    #[derive(Default)]
    struct Block(Vec<u8>);

    impl Block {
        /// POST, http, `/`: what every request has, from the static table.
        fn request() -> Self {
            let mut block = Self::default();
            [3, 6, 4].into_iter().for_each(|index| block.indexed(index));
            block
        }

        fn number(&mut self, prefix: u8, bits: u32, number: usize) {
            let max = (1 << bits) - 1;
            if number < max {
                self.0.push(prefix | number as u8);
                return;
            }
            self.0.push(prefix | max as u8);
            let mut rest = number - max;
            while rest >= 0x80 {
                self.0.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            self.0.push(rest as u8);
        }

        fn text(&mut self, text: &[u8], coding: Coding) {
            let (flag, bytes) = match coding {
                Coding::Raw => (0, text.to_vec()),
                Coding::Huffman => (0x80, huffman::encode(text)),
            };
            self.number(flag, 7, bytes.len());
            self.0.extend(bytes);
        }

        /// A literal `:authority`; `form` is the first byte's prefix: 0x40, 0x00 or 0x10.
        fn authority(&mut self, form: u8, name: Name, value: &[u8], coding: Coding) {
            let bits = if form == 0x40 { 6 } else { 4 };
            match name {
                Name::Indexed => self.number(form, bits, AUTHORITY_INDEX),
                Name::Literal(coding) => {
                    self.number(form, bits, 0);
                    self.text(AUTHORITY_NAME, coding);
                }
            }
            self.text(value, coding);
        }

        fn header(&mut self, name: &[u8], value: &[u8], coding: Coding) {
            self.0.push(0x40);
            self.text(name, coding);
            self.text(value, coding);
        }

        fn indexed(&mut self, index: usize) {
            self.number(0x80, 7, index);
        }
    }

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    }

    /// A connection: preface, SETTINGS, HEADERS with this authority, and DATA that must not be touched.
    fn connection(name: Name, authority: &[u8], coding: Coding) -> Vec<u8> {
        let mut block = Block::default();
        block.indexed(3);
        block.authority(0x40, name, authority, coding);
        block.header(b"path-like", b"/a%2Fb", Coding::Raw);
        let data = frame(0, 1, 1, b"%/ A:authority%2F");
        [PREFACE.to_vec(), frame(4, 0, 0, &[]), frame(HEADERS, 4, 1, &block.0), data].concat()
    }

    /// Feeds `input` in pieces of `step` bytes.
    fn scanned(input: &[u8], step: usize) -> Vec<u8> {
        let mut scanner = Scanner::Preface { seen: 0 };
        let (mut held, mut out) = (Vec::new(), Vec::new());
        for piece in input.chunks(step) {
            held.extend_from_slice(piece);
            let clean = scanner.scan(&mut held);
            out.extend(held.drain(..clean));
        }
        assert!(held.is_empty(), "a whole frame was held back");
        out
    }

    #[test]
    fn a_raw_path_is_cleaned_at_every_split_of_the_stream() {
        for name in NAMES {
            let input = connection(name, b"run%2Fapp%2Fs.sock", Coding::Raw);
            let wanted = connection(name, b"run-2Fapp-2Fs.sock", Coding::Raw);
            for step in 1..=input.len() {
                assert_eq!(scanned(&input, step), wanted, "{name:?}, pieces of {step}");
            }
        }
    }

    #[test]
    fn a_huffman_path_is_cleaned_at_every_split_of_the_stream() {
        for name in NAMES {
            let input = connection(name, b"/run/app v%2F\"s@[].sock", Coding::Huffman);
            let cleaned = connection(name, b"-run-app-v-2F!s~~~.sock", Coding::Huffman);
            for step in 1..=input.len() {
                assert_eq!(scanned(&input, step), cleaned, "{name:?}, pieces of {step}");
            }
        }
    }

    #[test]
    fn a_valid_authority_is_not_touched() {
        for authority in ["localhost", "localhost:50151", "[::1]:80", "10.0.0.1:1", "s.sock", "a%20b@host", "tonic"] {
            for (name, coding) in NAMES.into_iter().flat_map(|name| [(name, Coding::Raw), (name, Coding::Huffman)]) {
                if Authority::try_from(authority).is_ok() {
                    let input = connection(name, authority.as_bytes(), coding);
                    assert_eq!(scanned(&input, 7), input, "{authority}");
                }
            }
        }
    }

    #[test]
    fn padding_and_priority_are_passed_over() {
        let mut block = Block::default();
        block.authority(0x10, Name::Indexed, b"/a", Coding::Raw);
        let payload = [&[3][..], &[0, 0, 0, 0, 7], &block.0, &[0, 0, 0]].concat();
        let input = [PREFACE.to_vec(), frame(HEADERS, 4 | PADDED | PRIORITY, 1, &payload)].concat();
        let out = scanned(&input, input.len());
        assert!(out.windows(2).any(|pair| pair == b"-a"));
        assert_eq!(out.len(), input.len());
    }

    #[test]
    fn what_is_not_http2_passes() {
        let input = b"GET / HTTP/1.1\r\nhost: /a%2F\r\n\r\n";
        assert_eq!(scanned(input, 5), input);
    }

    #[test]
    fn a_frame_beyond_the_limit_is_not_held_back() {
        let big = frame(HEADERS, 4, 1, &vec![0; HEADERS_BYTES_MAX + 1]);
        let input = [PREFACE.to_vec(), big, connection(Name::Indexed, b"/a", Coding::Raw)[24..].to_vec()].concat();
        let out = scanned(&input, 1000);
        assert!(out.windows(3).any(|bytes| bytes == b"\x02-a"), "frames after it are still cleaned");
    }

    #[test]
    fn the_name_in_huffman_code_is_the_constant() {
        assert_eq!(huffman::encode(AUTHORITY_NAME), AUTHORITY_NAME_HUFFMAN);
    }

    #[test]
    fn a_symbol_without_a_substitute_stays() {
        let coded = huffman::encode("/ü#<".as_bytes());
        let mut cleaned = coded.clone();
        clean_huffman(&mut cleaned);
        assert_eq!(cleaned, huffman::encode("-ü#<".as_bytes()));
    }

    #[tokio::test]
    async fn the_stream_ends_with_what_was_held_back() {
        let input = connection(Name::Indexed, b"/a", Coding::Raw);
        let cut = input.len() - 20;
        let (mut client, server) = tokio::io::duplex(64);
        let mut shim = AuthorityShim::new(server);
        let mut out = Vec::new();
        let write = async {
            client.write_all(&input[..cut]).await.unwrap();
            drop(client);
        };
        let (read, ()) = tokio::join!(shim.read_to_end(&mut out), write);
        assert_eq!((read.unwrap(), out.len()), (cut, cut));
    }

    proptest! {
        #[test]
        fn random_blocks_never_panic_and_keep_their_length(mut block: Vec<u8>, flags: u8, step in 1..40_usize) {
            let length = block.len();
            let input = [PREFACE.to_vec(), frame(HEADERS, flags, 1, &block)].concat();
            prop_assert_eq!(scanned(&input, step).len(), input.len());
            clean_block(&mut block);
            clean_huffman(&mut block);
            prop_assert_eq!(block.len(), length);
        }

        #[test]
        fn random_streams_keep_their_length(bytes: Vec<u8>) {
            let input = [PREFACE.as_slice(), &bytes].concat();
            let mut scanner = Scanner::Preface { seen: 0 };
            let mut buffer = input.clone();
            prop_assert!(scanner.scan(&mut buffer) <= input.len());
        }

        #[test]
        fn huffman_round_trips(plain: Vec<u8>) {
            let symbols = huffman::decode(&huffman::encode(&plain)).expect("is coded");
            prop_assert_eq!(symbols.iter().map(|symbol| symbol.byte).collect::<Vec<_>>(), plain);
        }
    }

    /// One request as a client may code it.
    #[derive(Clone, Debug)]
    struct Call {
        form: u8,
        name: Name,
        coding: Coding,
        authority: String,
        metadata: Vec<(String, String)>,
    }

    fn call() -> impl Strategy<Value = Call> {
        let coding = || prop_oneof![Just(Coding::Raw), Just(Coding::Huffman)];
        let name = prop_oneof![Just(Name::Indexed), coding().prop_map(Name::Literal)];
        let form = prop_oneof![Just(0x40), Just(0x00), Just(0x10)];
        // What paths and their percent-encoded forms are made of.
        let authority = "[A-Za-z0-9%/:@ ._~!+-]{1,40}";
        let metadata = proptest::collection::vec(("x-[a-z]{1,8}", "[ -~]{0,300}"), 0..8);
        (form, name, coding(), authority, metadata).prop_map(|(form, name, coding, authority, metadata)| Call {
            form,
            name,
            coding,
            authority,
            metadata,
        })
    }

    /// Authority of the request after the last. Refused requests are never accepted, so without it nobody would know
    /// when all have been judged.
    const END: &str = "end";

    /// Sends the calls over one connection with one dynamic table and returns what `h2` made of each.
    async fn served(calls: &[Call]) -> Vec<http::Request<()>> {
        let mut bytes = [PREFACE.to_vec(), frame(4, 0, 0, &[])].concat();
        for (place, call) in calls.iter().enumerate() {
            let mut block = Block::request();
            block.authority(call.form, call.name, call.authority.as_bytes(), call.coding);
            for (name, value) in &call.metadata {
                block.header(name.as_bytes(), value.trim().as_bytes(), call.coding);
            }
            bytes.extend(frame(HEADERS, 5, 2 * place as u32 + 1, &block.0));
        }
        // A last request whose authority is an indexed reference to an entry that was cleaned.
        let mut block = Block::request();
        block.authority(0x40, Name::Indexed, b"/indexed/later", Coding::Raw);
        bytes.extend(frame(HEADERS, 5, 2 * calls.len() as u32 + 1, &block.0));
        let mut block = Block::request();
        block.indexed(62);
        bytes.extend(frame(HEADERS, 5, 2 * calls.len() as u32 + 3, &block.0));
        let mut block = Block::request();
        block.authority(0x00, Name::Indexed, END.as_bytes(), Coding::Raw);
        bytes.extend(frame(HEADERS, 5, 2 * calls.len() as u32 + 5, &block.0));

        let (mut client, server) = tokio::io::duplex(1 << 20);
        client.write_all(&bytes).await.unwrap();
        let mut connection = h2::server::handshake(AuthorityShim::new(server)).await.unwrap();
        let mut requests = Vec::new();
        while let Some(accepted) = connection.accept().await {
            let request = accepted.expect("a connection in order").0.map(drop);
            if request.uri().authority().is_some_and(|authority| authority == END) {
                break;
            }
            requests.push(request);
        }
        drop(client);
        requests
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The judge is the HTTP/2 implementation that serves in production.
        #[test]
        fn h2_accepts_every_path_and_sees_all_other_headers_unchanged(calls in
            proptest::collection::vec(call(), 1..12)) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let requests = runtime.block_on(served(&calls));
            prop_assert_eq!(requests.len(), calls.len() + 2);
            for (call, request) in calls.iter().zip(&requests) {
                let authority = request.uri().authority().expect("an authority").as_str();
                if Authority::try_from(call.authority.as_str()).is_ok() {
                    prop_assert_eq!(authority, &call.authority);
                } else {
                    prop_assert_eq!(authority.len(), call.authority.len());
                }
                for (name, value) in &call.metadata {
                    let values: Vec<&[u8]> = request.headers().get_all(name).iter().map(|v| v.as_bytes()).collect();
                    prop_assert!(values.contains(&value.trim().as_bytes()), "{name} = {value:?} of {values:?}");
                }
            }
            for request in &requests[calls.len()..] {
                prop_assert_eq!(request.uri().authority().map(Authority::as_str), Some("-indexed-later"));
            }
        }
    }
}
